"""The sentences of the page: a summary of the run, and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from headcount.runs.layout import LOG, QUARANTINE
from headcount.runs.report import contract
from headcount.runs.report.plain import format_p, format_speed, plural
from headcount.runs.results import PrunedRow
from headcount.runs.schema import HeadsRecord, RunRecord
from headcount.runs.store import Run

FEW = 200
"""With fewer examples than this, differences of a few percent cannot be told from chance."""


def summary_sentences(
    record: RunRecord, heads: HeadsRecord, curves: contract.Curves | None, bench: Sequence[contract.BenchRow], rows: Sequence[PrunedRow]
) -> list[str]:
    """Returns three sentences: the number of heads, how many can be removed at what cost, and the speed-up, as far as measured.

    `rows` are those of the pruned models, as `headcount.runs.results.compare_pruned` makes them.
    """
    n_heads, n_blocks = sum(len(block.heads) for block in heads.blocks), len(heads.blocks)
    first = f"{record.model.name} has {n_heads} attention heads in {n_blocks} blocks."
    return [first, pruning_sentence(curves, rows, n_heads), speed_sentence(bench, record.machine)]


def pruning_sentence(curves: contract.Curves | None, rows: Sequence[PrunedRow], n_heads: int) -> str:
    """Returns how many heads can be removed, by the tests of loss and metric."""
    if curves is None or curves["best"] is None:
        return "Nothing was pruned yet, so it is not known how many can be removed: headcount compare measures that."
    best = next(row for row in rows if row.id == curves["best"]["point"])
    result = f"by {best.method}: {_describe_change(curves, best)}."
    if not curves["best"]["is_safe"]:
        return f"Every number of heads that was tried makes the model significantly worse, even {best.keep} {result}"
    return f"{n_heads - best.keep} of them can be removed without a significant loss, {result}"


def _describe_change(curves: contract.Curves, row: PrunedRow) -> str:
    """Returns loss and metric of a pruned and of the dense model, each with its test."""
    dense, n = curves["dense"], curves["dense"]["n_examples"]
    loss, metric = row.changes["loss"], row.changes.get("metric")
    text = f"loss {row.loss:.4g} against {dense['loss']:.4g} ({loss.by} {format_p(loss.p)}, n = {n})"
    if row.value is None:
        return text
    text += f"; {curves['metric']} {row.value:.4g} against {dense['value']:.4g}"
    return text if metric is None else f"{text} ({metric.by} {format_p(metric.p)})"


def speed_sentence(bench: Sequence[contract.BenchRow], machine: Mapping[str, object]) -> str:
    """Returns how much faster the cut model is than the dense one, on which machine."""
    removed = [row for row in bench if row["name"] == "removed"]
    if not removed:
        return "The speed-up was not measured: headcount prune measures it."
    row = min(removed, key=lambda row: (abs(row["batch"] - 8), -row["length"]))
    same_model = [time for time in removed if (time["of"], time["length"]) == (row["of"], row["length"])]
    device, threads = str(machine.get("device", "cpu")), machine.get("threads")
    machine_text = f"CPU, {plural(threads, 'thread')}" if device == "cpu" and isinstance(threads, int) else device
    speeds = ", ".join(f"{format_speed(time['speedup'])} at batch {time['batch']}" for time in same_model)
    overlapping = [str(time["batch"]) for time in same_model if not time["is_apart"]]
    doubt = f"; at batch {', '.join(overlapping)} the quartiles overlap those of the dense model" if overlapping else ""
    return f"The smaller model ({row['of']}) is {speeds} (length {row['length']}, {machine_text}{doubt})."


def noise_warnings(bench: Sequence[contract.BenchRow]) -> list[str]:
    """Returns a warning if times are noisy: wide quartiles, or a masked model that is faster than the dense one."""
    doubtful = {(row["batch"], row["length"]) for row in bench if row["is_noisy"] or row["is_odd"]}
    if not doubtful:
        return []
    shapes = ", ".join(f"{batch} × {length}" for batch, length in sorted(doubtful))
    return [
        f"Times are noisy (batch × length {shapes}: quartiles far apart, or a masked model faster than the dense one): measure again when idle."
    ]


def warning_sentences(run: Run, record: RunRecord, curves: contract.Curves | None, bench: Sequence[contract.BenchRow]) -> list[str]:
    """Returns the warnings about a run: few examples, noisy times, damaged files, missing models, failures, mixed versions."""
    warnings = []
    if curves is not None and curves["dense"]["n_examples"] < FEW:
        warnings.append(f"Evaluated on {plural(curves['dense']['n_examples'], 'example')} only: small losses cannot be told from chance.")
    warnings += noise_warnings(bench)
    quarantine = run.folder / QUARANTINE
    n_damaged = sum(1 for _ in quarantine.iterdir()) if quarantine.is_dir() else 0
    if n_damaged:
        was, them = ("was", "it") if n_damaged == 1 else ("were", "them")
        warnings.append(
            f"{plural(n_damaged, 'damaged file')} {was} found in the run folder and moved to {QUARANTINE}/; the content of {them} was computed again."
        )
    warnings += missing_model_warnings(run, record)
    warnings += _logged_failures(run.folder / LOG)
    versions = {
        tuple(sorted(artifact.provenance.get("versions", {}).items()))
        for kind in ("scores", "damage", "roles", "evaluation", "pruned")
        for artifact in run.iter_artifacts(kind)
    }
    if len(versions) > 1:
        warnings.append("Parts of this run were computed with different versions of the software.")
    return warnings


def missing_model_warnings(run: Run, record: RunRecord) -> list[str]:
    """Returns a warning about models that run.json lists and that are missing or replaced."""
    missing = [name for name in record.models if run.problem_of_model(name) is not None]
    if not missing:
        return []
    are = "models are" if len(missing) > 1 else "model is"
    return [
        f"{len(missing)} {are} listed in run.json and missing in the run folder, or replaced by another ({', '.join(missing)[:200]}): run the "
        "command again, or copy the folder again with all its models."
    ]


def _logged_failures(log: Path) -> list[str]:
    """Returns the failures in the log, once each."""
    if not log.is_file():
        return []
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    failed = [line.split(" ", 2)[-1] for line in lines if line.split(" ", 2)[-1].startswith("failed")]
    return [text[:1].upper() + text[1:] for text in dict.fromkeys(failed)]
