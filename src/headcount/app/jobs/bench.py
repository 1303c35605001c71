"""`headcount bench`: opens the models, measures them and prints times and costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from headcount.app.console.inputs import ModelOptions
from headcount.app.console.models import open_model
from headcount.app.console.session import Session
from headcount.app.console.words import prune_command
from headcount.core.errors import ArtifactError
from headcount.core.files import is_file, model_path_or_name
from headcount.runs.report.plain import format_speed
from headcount.runs.results import PRUNED
from headcount.runs.store import Run
from headcount.surgery.bench import Timing, bench
from headcount.surgery.cost import cost


class ModelSource(NamedTuple):
    """Where a model is, by folder or name, and how it is loaded."""

    name_or_folder: str
    loading: ModelOptions


def bench_models(
    session: Session, targets: Sequence[str], batch_sizes: Sequence[int], lengths: Sequence[int], rounds: int, loading: ModelOptions
) -> None:
    """Measures the models of the targets, models or run folders, and prints the times and the costs of each."""
    sources: dict[str, ModelSource] = {}
    for target in targets:
        is_run = is_file(Path(target) / "run.json")
        sources |= _list_models_of_run(target, loading) if is_run else {target: ModelSource(target, loading)}
    models = {name: open_model(session, folder, options)[0] for name, (folder, options) in sources.items()}
    with session.progress("measuring", "sizes") as advance:
        timings = bench(models, batches=batch_sizes, lengths=lengths, rounds=rounds, progress=advance)
    _show_timings(session, timings)
    if longer := sorted(set(lengths) - {timing.length for timing in timings}):
        most = max(timing.length for timing in timings)
        session.write_note(
            f"length {', '.join(map(str, longer))} is beyond the {most} positions that the models share; {most} was measured instead"
        )
    costs = {name: cost(model).to_dict() for name, model in models.items()}
    columns = ("model", *next(iter(costs.values())))
    session.write_table(
        columns, [(name, *(f"{value:,}" for value in row.values())) for name, row in costs.items()], right_aligned=columns[1:]
    )
    session.write_json({"timings": [asdict(timing) for timing in timings], "costs": costs})


def _list_models_of_run(run_folder: str, default_loading: ModelOptions) -> dict[str, ModelSource]:
    """Returns the dense model of a run, loaded as the run records it, and the models that it keeps, by name.

    Raises:
        ArtifactError: the run compared pruned models and keeps the weights of none, so that there is nothing to compare.
    """
    run = Run.open(Path(run_folder))
    record = run.record()
    pruned = [artifact for artifact in run.results(PRUNED).values() if artifact.content["removed"]]
    if pruned and not run.models():
        command = prune_command(record, run.folder.name, pruned[0]).rpartition(" --out ")[0]
        raise ArtifactError(
            f"{run.folder} holds the results of {len(pruned)} pruned models and the weights of none, so there is nothing to measure "
            f"beside the dense model; make and keep one of them first, such as: {command} --out {run.folder}"
        )
    dense = {
        f"{run_folder}: whole": ModelSource(
            model_path_or_name(record.model.name, record.config), default_loading.fill_from_run_config(record.config)
        )
    }
    return dense | {path.name: ModelSource(str(path), default_loading) for path in run.models()}


def _show_timings(session: Session, timings: Sequence[Timing]) -> None:
    table = [
        (
            t.batch,
            t.length,
            t.name,
            f"{1000 * t.seconds:.2f}",
            f"{1000 * t.low:.2f} … {1000 * t.high:.2f}",
            format_speed(t.speedup, t.speedup_low, t.speedup_high),
        )
        for t in timings
    ]
    session.write_table(
        ("batch", "length", "model", "ms", "quartiles", "against the first (95 %)"), table, right_aligned=("batch", "length", "ms")
    )
