"""`headcount bench`: how long a forward pass takes, of a model, of several, or of what a run kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.options import split
from headcount.app.console.session import Session
from headcount.core.errors import ArtifactError
from headcount.core.files import reopened_model

if TYPE_CHECKING:
    from headcount.runs.store import Run

Targets = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|MODEL…", help="Models, the first being the measure; or a run, whose models are measured.", show_default=False
    ),
]
Batches = Annotated[str, typer.Option("--batches", metavar="N,…", help="Batch sizes.")]
Lengths = Annotated[str, typer.Option("--lengths", metavar="N,…", help="Lengths in tokens.")]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="How often each is measured; the median is shown.")]


def _numbers(text: str, what: str) -> list[int]:
    parts = split(text)
    if not parts or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{what} are numbers from 1 on with commas between them, got {text}")
    return [int(part) for part in parts]


@command
def run(
    session: Session,
    targets: Targets,
    batches: Batches = "1,8,32",
    lengths: Lengths = "32,128",
    rounds: Rounds = 5,
    loading: inputs.ModelOptions = inputs.DEFAULT_LOADING,
) -> None:
    """Measure forward passes by batch size and length, interleaved, as medians with quartiles."""
    sizes, tokens = _numbers(batches, "--batches"), _numbers(lengths, "--lengths")
    from dataclasses import asdict

    from headcount.surgery.bench import bench
    from headcount.surgery.cost import cost

    models = {name: how.open(session, folder)[0] for name, (folder, how) in _named(targets, loading).items()}
    with session.progress("measuring", "sizes") as advance:
        found = bench(models, batches=sizes, lengths=tokens, rounds=rounds, progress=advance)
    _show(session, found)
    if longer := sorted(set(tokens) - {timing.length for timing in found}):
        most = max(timing.length for timing in found)
        session.note(
            f"length {', '.join(map(str, longer))} is beyond the {most} positions that the models share; {most} was measured instead"
        )
    costs = {name: cost(model).to_dict() for name, model in models.items()}
    columns = ("model", *next(iter(costs.values())))
    session.table(columns, [(name, *(f"{value:,}" for value in made.values())) for name, made in costs.items()], right=columns[1:])
    session.result({"timings": [asdict(timing) for timing in found], "costs": costs})


def _named(targets: list[str], loading: inputs.ModelOptions) -> dict[str, tuple[str, inputs.ModelOptions]]:
    """The models to measure by name, and how each is loaded: those given, or the model of a run, as it records it, and those that it kept."""
    found: dict[str, tuple[str, inputs.ModelOptions]] = {}
    for target in targets:
        if (Path(target) / "run.json").is_file():
            from headcount.runs.store import Run

            run = Run.open(Path(target))
            record = run.record()
            found[f"{target}: whole"] = reopened_model(record.model.name, record.config), loading.as_recorded(record.config)
            kept = run.models()
            if not kept:
                _check_models(run)
            found |= {path.name: (str(path), loading) for path in kept}
        else:
            found[target] = target, loading
    return found


def _check_models(run: Run) -> None:
    """Refuses a run that compared pruned models and kept the weights of none: the whole model alone is not what was asked for."""
    from headcount.runs.report.commands import prune_command
    from headcount.runs.results import PRUNED

    artifacts = [artifact for artifact in run.results(PRUNED).values() if artifact.content["removed"]]
    if artifacts:
        command = prune_command(run.record(), run.folder.name, artifacts[0]).rpartition(" --out ")[0]
        raise ArtifactError(
            f"{run.folder} holds the results of {len(artifacts)} pruned models and the weights of none, so there is nothing to measure "
            f"beside the dense model; make and keep one of them first, such as: {command} --out {run.folder}"
        )


def _show(session: Session, found: list[Any]) -> None:
    from headcount.runs.report.plain import format_speed

    table = [
        (t.batch, t.length, t.name, f"{1000 * t.seconds:.2f}", f"{1000 * t.low:.2f} … {1000 * t.high:.2f}", format_speed(t.speedup))
        for t in found
    ]
    session.table(("batch", "length", "model", "ms", "quartiles", "against the first"), table, right=("batch", "length", "ms"))
