"""`headcount compare`: every method at every number of heads, in pairs with the dense model; every artifact of the grid can be taken up again."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.format import format_smallest, format_training
from headcount.app.console.options import split
from headcount.app.console.pruning import DEFAULT_PRUNING, PruningOptions, parse_heads, show_table, split_methods
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
    pruning_options: PruningOptions = DEFAULT_PRUNING,
) -> None:
    """Prune by every method to every number of heads, and show what each costs against the dense model on the same examples."""
    if out is None:
        raise typer.BadParameter("compare keeps its grid in a run folder; name it with --out")
    with RunFolder(out, workers, engine, join).open(session) as kept:
        from headcount.pruning.prune import check_request
        from headcount.workflows.prune import Pruning, build_grid, compare, estimate_training

        live, heads, folder = given.open_model(session)
        keeps = [parse_heads(text, heads, pruning_options.attention) for text in split(keep)]
        template = pruning_options.spec("random", seed=given.seed, keep=1)
        specs = build_grid(split_methods(methods), keeps, seeds, template, first_seed=given.seed)
        for spec in specs:
            check_request(spec, live, heads)
        if kept is None:
            raise typer.BadParameter("compare is led by one process; share it with --workers, --engine or --join instead of torchrun")
        describe(kept, session, given, live, heads, {"methods": methods, "keep": keeps, "seeds": seeds, "template": template.to_dict()})
        task = given.open_task(session, live, folder)
        pruning = Pruning(kept, live, task, limit=given.limit, command=session.command)
        estimate = estimate_training(pruning, specs)
        if estimate is not None:
            session.note(format_training(**asdict(estimate)))
        with session.progress("pruning", "models") as advance:
            dense, artifacts, failed = compare(pruning, specs, progress=advance)
        rows = pruning.rows(dense, artifacts)
        show_table(session, dense, rows)
        from headcount.runs.results import smallest_safe

        smallest = smallest_safe(rows)
        session.table(
            ("method", "fewest heads without a significant loss"),
            [(name, format_smallest(rows, name, number)) for name, number in smallest.items()],
        )
        for name, error in failed.items():
            session.note(f"failed: {name}: {error}")
        session.result(
            {
                "model": given.model,
                "out": str(out),
                "dense": {"loss": dense.loss, "metric": dense.metric, "value": dense.value, "n_examples": dense.n_examples},
                "rows": [row.to_dict() for row in rows],
                "smallest": smallest,
                "failed": {name: str(error) for name, error in failed.items()},
            }
        )
        session.note(f"kept in {out}")
        session.next("prune", given.model, *given.of_task, "--method", "surgeon", "--keep", str(keeps[0]), "--out", str(out))
