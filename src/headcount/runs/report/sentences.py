"""The sentences of the page: a summary of the run, and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from headcount.runs.layout import LOG, QUARANTINE
from headcount.runs.report import contract
from headcount.runs.report.certificates import describe_smallest_margin, headline
from headcount.runs.report.plain import format_count, format_speed
from headcount.runs.results import PrunedModelRow
from headcount.runs.schema import HeadsRecord, RunRecord
from headcount.runs.store import Run

FEW = 200
"""With fewer examples than this, no model can be shown to lose less than a few points."""


def summary_sentences(
    record: RunRecord,
    heads: HeadsRecord,
    curves: contract.Curves | None,
    bench: Sequence[contract.BenchRow],
    rows: Sequence[PrunedModelRow],
) -> list[str]:
    """Returns three sentences: the number of heads, what was certified or the bound of the chosen model, and the speed-up, as far as measured.

    `rows` are those of the pruned models, as `headcount.runs.results.compare_pruned_with_dense` makes them.
    """
    n_heads, n_blocks = sum(len(block.heads) for block in heads.blocks), len(heads.blocks)
    first = f"{record.model.name} has {n_heads} attention heads in {n_blocks} blocks."
    return [first, pruning_sentence(curves, rows, n_heads), speed_sentence(bench, record.machine)]


def pruning_sentence(curves: contract.Curves | None, rows: Sequence[PrunedModelRow], n_heads: int) -> str:
    """Returns what was certified, or how much worse the chosen model is, at most, and on how many examples."""
    if curves is None or (curves["chosen"] is None and all(not row.removed for row in rows)):
        return "Nothing was pruned yet, so it is not known how many can be removed: headcount compare measures that."
    if curves["chosen"] is None:
        return "The pruned models were not evaluated on the selection split, so none was chosen: run the command again."
    point = next(point for point in curves["points"] if curves["chosen"]["point"] == point["id"])
    row = next(row for row in rows if row.id == point["id"])
    bound = f"{headline(row.certificate)}, by {row.method}"
    tested = [size["keep"] for size in curves["sizes"]]
    order = f"; sizes tested in order: {', '.join(map(str, tested))} heads" if tested else ""
    if point["verdict"] == "certified":
        return f"Certified within {point['margin']}: with {row.n_kept} of {n_heads} heads it is {bound}{order}."
    if tested:
        return f"No size is certified within {point['margin']}: with {row.n_kept} of {n_heads} heads it is {bound}."
    margin = describe_smallest_margin(row.certificate.quality)
    return f"With {row.n_kept} of {n_heads} heads it is {bound}, the best on the selection split; the smallest margin that certifies it is {margin}."


def speed_sentence(bench: Sequence[contract.BenchRow], machine: Mapping[str, object]) -> str:
    """Returns how much faster the cut model is than the dense one, on which machine."""
    removed = [row for row in bench if row["name"] == "removed"]
    if not removed:
        return "The speed-up was not measured: headcount prune measures it."
    row = min(removed, key=lambda row: (abs(row["batch"] - 8), -row["length"]))
    same_model = [time for time in removed if (time["of"], time["length"]) == (row["of"], row["length"])]
    device, threads = str(machine.get("device", "cpu")), machine.get("threads")
    machine_text = f"CPU, {format_count(threads, 'thread')}" if device == "cpu" and isinstance(threads, int) else device
    speeds = ", ".join(
        f"{format_speed(time['speedup'], time.get('speedup_low'), time.get('speedup_high'))} at batch {time['batch']}"
        for time in same_model
    )
    alike = [str(time["batch"]) for time in same_model if not time["is_apart"]]
    doubt = f"; at batch {', '.join(alike)} it is not shown to differ from the dense model" if alike else ""
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
        warnings.append(f"Evaluated on {format_count(curves['dense']['n_examples'], 'example')} only: bounds are wide.")
    warnings += noise_warnings(bench)
    quarantine = run.folder / QUARANTINE
    n_damaged = sum(1 for _ in quarantine.iterdir()) if quarantine.is_dir() else 0
    if n_damaged:
        was, them = ("was", "it") if n_damaged == 1 else ("were", "them")
        warnings.append(
            f"{format_count(n_damaged, 'damaged file')} {was} found in the run folder and moved to {QUARANTINE}/; "
            f"the content of {them} was computed again."
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
    missing = [name for name in record.models if run.problem_of_saved_model(name) is not None]
    if not missing:
        return []
    are = "models are" if len(missing) > 1 else "model is"
    return [
        f"{len(missing)} {are} listed in run.json and missing in the run folder, or replaced by another ({', '.join(missing)[:200]}): run the "
        "command again, or copy the folder again with all its models."
    ]


def _logged_failures(log_path: Path) -> list[str]:
    """Returns the failures in the log, once each."""
    if not log_path.is_file():
        return []
    lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    failed = [line.split(" ", 2)[-1] for line in lines if line.split(" ", 2)[-1].startswith("failed")]
    return [text[:1].upper() + text[1:] for text in dict.fromkeys(failed)]
