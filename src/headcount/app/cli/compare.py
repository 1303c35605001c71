"""`headcount compare`: every method at every number of heads, in pairs with the whole model; every artifact of the grid can be taken up again."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.options import split
from headcount.app.console.pruning import DEFAULT_PRUNING, How, heads_of, method_names, note_training, show_table
from headcount.app.console.run_folder import Engine, Join, Out, RunFolder, Workers, describe
from headcount.app.console.session import Session

Methods = Annotated[
    str,
    typer.Option(
        "--methods",
        metavar="NAME,…",
        help="Pruners or importances; options in brackets: rank(by=fisher;again=true). Random is always there.",
    ),
]
Keep = Annotated[str, typer.Option("--keep", metavar="K,…", help="How many heads stay: numbers, or shares such as 10%,25%,50%,75%.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Seeds of methods with chance in them.")]


@command
def run(
    session: Session,
    given: inputs.TaskOptions,
    methods: Methods = "surgeon,gradient,random",
    keep: Keep = "12.5%,25%,50%,75%",
    seeds: Seeds = 3,
    out: Out = None,
    workers: Workers = 1,
    engine: Engine = "local",
    join: Join = False,
    how: How = DEFAULT_PRUNING,
) -> None:
    """Prune by every method to every number of heads, and show what each costs against the whole model on the same examples."""
    if out is None:
        raise typer.BadParameter("compare keeps its grid in a run folder; name it with --out")
    with RunFolder(out, workers, engine, join).open(session) as kept:
        from headcount.runs.results import format_smallest, smallest_safe
        from headcount.workflows.prune import Pruning, check_wish, compare, estimate_training, grid, rows

        live, heads, folder = given.open_model(session)
        keeps = [heads_of(text, heads, how.attention) for text in split(keep)]
        template = how.wish(given, "random", 1)
        wishes = grid(method_names(methods), keeps, seeds, template, first=given.seed)
        for wish in wishes:
            check_wish(live, wish)
        if kept is None:
            raise typer.BadParameter("compare is led by one process; share it with --workers, --engine or --join instead of torchrun")
        config = {
            "methods": methods,
            "keep": keeps,
            "seeds": seeds,
            "repair": how.repair,
            "recover": how.recover,
            "recipe": template.recipe.told(),
        }
        describe(kept, session, given, live, heads, config)
        task = given.open_task(session, live, folder)
        pruning = Pruning(kept, live, task, limit=given.limit, command=session.command)
        note_training(session, estimate_training(pruning, wishes))
        with session.progress("pruning", "models") as advance:
            dense, artifacts, failed = compare(pruning, wishes, progress=advance)
        table = rows(pruning, dense, artifacts)
        show_table(session, dense, table)
        safe = smallest_safe(table)
        session.table(
            ("method", "fewest heads without a significant loss"),
            [(name, format_smallest(table, name, number)) for name, number in safe.items()],
        )
        for name, error in failed.items():
            session.note(f"failed: {name}: {error}")
        session.result(_result(given.model, str(out), dense, table, safe, failed))
        session.note(f"kept in {out}")
        session.next("prune", given.model, *given.of_task, "--method", "surgeon", "--keep", str(keeps[0]), "--out", str(out))


def _result(model: str, out: str, dense: Any, table: Any, safe: Any, failed: Any) -> dict[str, Any]:
    whole = {"loss": dense.loss, "metric": dense.metric, "value": dense.value, "n_examples": dense.n_examples}
    return {
        "model": model,
        "out": out,
        "dense": whole,
        "rows": table,
        "smallest": safe,
        "failed": {name: str(error) for name, error in failed.items()},
    }
