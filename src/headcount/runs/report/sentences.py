"""The sentences of the page: what matters most about a run in three of them, and what to be careful about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from math import isfinite
from pathlib import Path
from typing import Any

from headcount.runs.report.plain import plural
from headcount.runs.results import PrunedRow
from headcount.runs.schema import HeadsRecord, RunRecord
from headcount.runs.store import LOG, QUARANTINE, Run

FEW = 200
"""With fewer examples than this, differences of a few percent cannot be told from chance."""


def format_p(p: float) -> str:
    """Returns a p-value as the page writes it: `p = 0.63`, two digits, halves up as JavaScript rounds them, or `p < 0.001`."""
    if not isfinite(p):
        return "p unknown"
    p = float(f"{p:.3g}")  # the page has three digits of it
    if p < 0.001:
        return "p < 0.001"
    exact = Decimal(p)
    return f"p = {float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 1), ROUND_HALF_UP)):g}"


def format_speed(ratio: float) -> str:
    """Returns how fast one model is against another, in words: `1.27 times as fast`, or, where the ratio is below 1, `1.27 times as slow`."""
    text = f"{ratio if ratio >= 1 else 1 / ratio:.2f}"
    return "as fast" if text == "1.00" else f"{text} times as {'fast' if ratio >= 1 else 'slow'}"


def summary_of(record: RunRecord, heads: HeadsRecord, data: Mapping[str, Any], rows: Sequence[PrunedRow]) -> list[str]:
    """How many heads there are, how many can go and at what cost, and how much faster that is: as far as it was measured.

    `rows` are those of the pruned models, as `headcount.runs.results.compare_pruned` makes them.
    """
    n_heads, n_blocks = sum(len(block.heads) for block in heads.blocks), len(heads.blocks)
    first = f"{record.model.name} has {n_heads} attention heads in {n_blocks} blocks."
    return [first, pruned(data["curves"], rows, n_heads), _faster(data["bench"], record.machine)]


def pruned(curves: Mapping[str, Any] | None, rows: Sequence[PrunedRow], n_heads: int) -> str:
    """How many heads can go, by the tests that decide it, of the loss and of the metric."""
    if curves is None or curves["best"] is None:
        return "Nothing was pruned yet, so it is not known how many can go: headcount compare does that."
    best = next(row for row in rows if row.id == curves["best"]["point"])
    told = f"by {best.method}: {_change(curves, best)}."
    if not curves["best"]["is_safe"]:
        return f"Every number of heads that was tried makes the model significantly worse, even {best.keep} {told}"
    return f"{n_heads - best.keep} of them can go without a significant loss, {told}"


def _change(curves: Mapping[str, Any], row: PrunedRow) -> str:
    """What became of loss and metric, each with its own test."""
    dense, n = curves["dense"], curves["dense"]["n_examples"]
    loss, metric = row.changes["loss"], row.changes.get("metric")
    text = f"loss {row.loss:.4g} against {dense['loss']:.4g} ({loss.by} {format_p(loss.p)}, n = {n})"
    if row.value is None:
        return text
    text += f"; {curves['metric']} {row.value:.4g} against {dense['value']:.4g}"
    return text if metric is None else f"{text} ({metric.by} {format_p(metric.p)})"


def _faster(bench: Sequence[Mapping[str, Any]], machine: Mapping[str, Any]) -> str:
    removed = [row for row in bench if row["name"] == "removed"]
    if not removed:
        return "How much faster that is was not measured: headcount prune does that."
    row = min(removed, key=lambda row: (abs(row["batch"] - 8), -row["length"]))
    mine = [each for each in removed if (each["of"], each["length"]) == (row["of"], row["length"])]
    device, threads = str(machine.get("device", "cpu")), machine.get("threads")
    where = f"CPU, {plural(threads, 'thread')}" if device == "cpu" and threads else device
    told = ", ".join(f"{format_speed(each['speedup'])} at batch {each['batch']}" for each in mine)
    alike = [str(each["batch"]) for each in mine if not each["is_apart"]]
    doubt = f"; at batch {', '.join(alike)} the quartiles overlap those of the whole model" if alike else ""
    return f"The smaller model ({row['of']}) is {told} (length {row['length']}, {where}{doubt})."


def noise_of(bench: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence where times are too noisy to be trusted: wide quartiles, or a masked model that is faster than the one that it is."""
    doubtful = {(row["batch"], row["length"]) for row in bench if row["is_noisy"] or row["is_odd"]}
    if not doubtful:
        return []
    told = ", ".join(f"{batch} × {length}" for batch, length in sorted(doubtful))
    return [
        f"Times are noisy (batch × length {told}: quartiles far apart, or a masked model faster than the whole one): measure again when idle."
    ]


def warnings_of(run: Run, record: RunRecord, data: Mapping[str, Any]) -> list[str]:
    """What a reader should know before trusting the numbers."""
    found = []
    curves = data["curves"]
    if curves is not None and curves["dense"]["n_examples"] < FEW:
        found.append(f"Evaluated on {plural(curves['dense']['n_examples'], 'example')} only: small losses cannot be told from chance.")
    found += noise_of(data["bench"])
    aside = _count(run.folder / QUARANTINE)
    if aside:
        was, them = ("was", "it") if aside == 1 else ("were", "them")
        found.append(f"{plural(aside, 'damaged file')} {was} found in the run folder and set aside; what was in {them} was computed again.")
    found += missing_of(run, record)
    found += _failures(run.folder / LOG)
    made = {
        tuple(sorted(artifact.made.get("versions", {}).items()))
        for kind in ("scores", "roles", "evaluation", "pruned")
        for artifact in run.each(kind)
    }
    if len(made) > 1:
        found.append("Parts of this run were computed with different versions of the software.")
    return found


def missing_of(run: Run, record: RunRecord) -> list[str]:
    """A sentence about models that run.json lists and that are gone, or others in their place, if there are any."""
    gone = [name for name in record.models if run.problem_of_model(name) is not None]
    if not gone:
        return []
    are = "models are" if len(gone) > 1 else "model is"
    return [
        f"{len(gone)} {are} listed in run.json and missing in the run folder, or replaced by another ({', '.join(gone)[:200]}): run the command "
        "again, or copy the folder again with all its models."
    ]


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0


def _failures(log: Path) -> list[str]:
    """Work that failed, as the log tells it, once each."""
    if not log.is_file():
        return []
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    failed = [line.split(" ", 2)[-1] for line in lines if line.split(" ", 2)[-1].startswith("failed")]
    return [text[:1].upper() + text[1:] for text in dict.fromkeys(failed)]
