"""`headcount prune`: ask for K heads, get the best K-head model by any method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headcount.terminal import inputs
from headcount.terminal.options import split
from headcount.terminal.pruning import (
    Ablation,
    Distil,
    Epochs,
    Floor,
    KeepOne,
    Kinds,
    KvBytes,
    Latency,
    Options,
    Parameters,
    Protect,
    Rate,
    Recover,
    Repair,
    Scratch,
    TrainBatch,
    Unit,
    recipe,
    show_table,
)
from headcount.terminal.run import Place, describe
from headcount.terminal.session import Session

Method = Annotated[str, typer.Option("--method", metavar="NAME", help="A pruner of `headcount ls pruners`, or an importance to rank by.")]
Out = Annotated[Path, typer.Option("--out", metavar="RUN", help="The run folder: plan, model, numbers; the same command goes on from it.")]
MethodSeed = Annotated[
    int | None, typer.Option("--method-seed", min=0, help="The seed of the method, where it is not that of the data (--seed).")
]
Bench = Annotated[bool, typer.Option("--bench/--no-bench", help="Measure how much faster the cut model is.")]


@inputs.over_data
def run(
    say: Session,
    given: inputs.Shared,
    out: Out,
    keep: KeepOne = None,
    parameters: Parameters = None,
    kv_bytes: KvBytes = None,
    latency: Latency = None,
    kinds: Kinds = None,
    method: Method = "surgeon",
    option: Options = None,
    ablation: Ablation = "zero",
    repair: Repair = None,
    recover: Recover = None,
    scratch: Scratch = None,
    epochs: Epochs = 1.0,
    rate: Rate = 5e-5,
    train_batch: TrainBatch = 32,
    distil: Distil = 0.0,
    protect: Protect = None,
    floor: Floor = 0,
    unit: Unit = "kv_group",
    method_seed: MethodSeed = None,
    bench: Bench = True,
) -> None:
    """Prune to K heads, repair, cut, verify, evaluate against the whole model in pairs, and save the smaller model."""
    with Place(out).taken(say) as kept:
        from headcount.plan import Plan
        from headcount.pruning import Pruning, Sizes, Wish, check_wish, parse_method, rows
        from headcount.runs.sweep import sweep
        from headcount.terminal.pruning import heads_of, limit_of

        live, heads, folder = given.open_model(say)
        name, own = parse_method(method)
        wanted = tuple(split(kinds or ""))
        limit = limit_of(keep, parameters=parameters, kv_bytes=kv_bytes, latency=latency)
        wish = Wish(
            name,
            heads_of(keep, heads, wanted) if keep is not None else 0,
            limit=limit,
            kinds=wanted,
            seed=given.seed if method_seed is None else method_seed,
            ablation=ablation,  # pyright: ignore[reportArgumentType]
            repair=repair,
            recover=recover,
            scratch=scratch,
            options={**own, **inputs.pairs(option)},
            recipe=recipe(given, rate, train_batch, distil, epochs),
            floor=floor,
            unit=unit,
            protected=tuple(sorted(set(split(protect or "")))),
        )
        check_wish(live, wish)
        if kept is None:
            raise typer.BadParameter(
                "prune keeps its results in a run folder, which one process leads; torchrun trains with headcount.prune in Python"
            )
        describe(kept, say, given, live, heads, {"wish": wish.parts(), "limit": given.limit})
        task = given.open_task(say, live, folder)
        pruning = Pruning(kept, live, task, limit=given.limit, command=say.command, companions=folder, measured=Sizes() if bench else None)
        with say.progress("evaluating the whole model"):
            dense = pruning.dense()
        with say.progress(f"pruning by {method}") as advance:
            cells, failed = sweep(kept, [pruning.job(wish, keep_model=True, progress=advance)], made=pruning.made)
        for error in failed.values():
            raise error
        kept.present(*cells)
        (cell,) = cells
        place = pruning.place(cell.spec)
        plan = Plan.removing(cell.content["removed"])
        plan.write(place.parent / f"{place.name}.plan.json", heads, weights=pruning.base["weights"])
        made = rows(pruning, dense, cells)
        show_table(say, dense, made)
        timings = pruning.timings(cell)
        _show_timings(say, timings)
        say.note(f"the model: {place}")
        say.result(
            {"model": given.model, "out": str(out), "folder": str(place), "plan": cell.content["removed"], "rows": made, "bench": timings}
        )
        say.next("check", place)


def _show_timings(say: Session, rows: list[dict[str, Any]]) -> None:
    if rows:
        table = [(row["batch"], row["length"], row["name"], f"{1000 * row['seconds']:.1f}", f"{row['speedup']:.2f}") for row in rows]
        say.table(("batch", "length", "model", "ms", "times as fast"), table, right=("batch", "length", "ms", "times as fast"))
