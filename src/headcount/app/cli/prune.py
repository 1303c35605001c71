"""`headcount prune`: ask for K heads, get the best K-head model by any method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.pruning import (
    DEFAULT_PRUNING,
    How,
    KeepOne,
    KvBytes,
    Latency,
    Parameters,
    heads_of,
    limit_of,
    note_training,
    show_table,
)
from headcount.app.console.run_folder import RunFolder, describe
from headcount.app.console.session import Session
from headcount.core.plan import Plan

Method = Annotated[
    str,
    typer.Option(
        "--method", metavar="NAME", help="A pruner of `headcount ls pruners` (with its name: its definition), or an importance to rank by."
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="RUN", help="The run folder: plan, model, numbers; the same command goes on from it.")]
MethodSeed = Annotated[
    int | None, typer.Option("--method-seed", min=0, help="The seed of the method, where it is not that of the data (--seed).")
]
Bench = Annotated[bool, typer.Option("--bench/--no-bench", help="Measure how much faster the cut model is.")]


@command
def run(
    session: Session,
    given: inputs.TaskOptions,
    out: Out,
    keep: KeepOne = None,
    parameters: Parameters = None,
    kv_bytes: KvBytes = None,
    latency: Latency = None,
    method: Method = "surgeon",
    how: How = DEFAULT_PRUNING,
    method_seed: MethodSeed = None,
    bench: Bench = True,
) -> None:
    """Prune to K heads, repair, cut, verify, evaluate against the whole model in pairs, and save the smaller model."""
    with RunFolder(out).open(session) as kept:
        from headcount.workflows.prune import Pruning, Sizes, check_wish, estimate_training, rows

        own_size = how.wish(given, method, 0).own_size
        limit = limit_of(keep, own_size, parameters=parameters, kv_bytes=kv_bytes, latency=latency)
        live, heads, folder = given.open_model(session)
        size = heads_of(keep, heads, how.attention) if keep is not None else 0
        seed = given.seed if method_seed is None else method_seed
        wish = how.wish(given, method, size, seed=seed, limit=limit)
        check_wish(live, wish)
        if kept is None:
            raise typer.BadParameter(
                "prune keeps its results in a run folder, which one process leads; torchrun trains with headcount.prune in Python"
            )
        describe(kept, session, given, live, heads, {"wish": wish.parts(), "limit": given.limit})
        task = given.open_task(session, live, folder)
        pruning = Pruning(
            kept, live, task, limit=given.limit, command=session.command, companions=folder, measured=Sizes() if bench else None
        )
        with session.progress("evaluating the whole model"):
            dense = pruning.dense()
        note_training(session, estimate_training(pruning, [wish]))
        with session.progress(f"pruning by {method}") as advance:
            artifact, _ = pruning.kept(wish, advance)
        kept.present(artifact)
        place = pruning.place(artifact.key)
        plan = Plan.removing(artifact.content["removed"])
        plan.write(place.parent / f"{place.name}.plan.json", heads, weights=pruning.base["weights"])
        made = rows(pruning, dense, [artifact])
        show_table(session, dense, made)
        timings = pruning.timings(artifact)
        _show_timings(session, timings)
        session.note(f"the model: {place}")
        session.result(
            {
                "model": given.model,
                "out": str(out),
                "folder": str(place),
                "plan": artifact.content["removed"],
                "rows": made,
                "bench": timings,
            }
        )
        session.next("check", place)


def _show_timings(session: Session, rows: list[dict[str, Any]]) -> None:
    from headcount.runs.results import format_speed

    if rows:
        table = [(row["batch"], row["length"], row["name"], f"{1000 * row['seconds']:.1f}", format_speed(row["speedup"])) for row in rows]
        session.table(("batch", "length", "model", "ms", "against the whole model"), table, right=("batch", "length", "ms"))
