"""Writes the report of a run within a size limit: attention maps of the least important heads and of the last sentences are left out first."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from headcount.core.errors import ArtifactError
from headcount.core.files import check_writable, write_atomic
from headcount.runs.report import contract
from headcount.runs.report.attention import RunAttentionMaps
from headcount.runs.report.collect import ReportData, collect_report
from headcount.runs.report.page import DATA, FrontEnd, load_front_end, render_page, report_to_json
from headcount.runs.report.repeat import PruneCommand, format_prune_call
from headcount.runs.store import Run

FILE, OWN = "report.html", "report*.html"
MAX_MB, HARD_MB = 2.0, 10.0
MEGABYTE = 10**6
IncludedHeads = list[list[int]] | None
"""The heads of every block whose maps are included; None for all."""


def write_report(
    run: Run, run_b: Run | None = None, out: Path | None = None, *, max_mb: float = MAX_MB, prune_command: PruneCommand = format_prune_call
) -> Path:
    """Writes the report of a run, or of two, into one HTML file of at most `max_mb` megabytes and returns its path.

    `prune_command` says how a pruned model is made again.
    """
    if not 0 < max_mb <= HARD_MB:
        raise ArtifactError(
            f"the size of a report (max_mb) is a number above 0 and at most {HARD_MB:g} MB, so that it opens everywhere and can be mailed; got "
            f"{max_mb:g}. Name one between, such as {MAX_MB:g}"
        )
    target = Path(out) if out is not None else run.folder / FILE
    check_writable(target)
    if target.is_dir():
        raise ArtifactError(f"{target} is a folder; name the file to write, such as {target / FILE}")
    if out is not None:
        _check_report_path(target, [run.folder, *([] if run_b is None else [run_b.folder])])
    bundle = load_front_end()
    report = fit_report(collect_report(run, run_b, prune_command=prune_command), round(max_mb * MEGABYTE), bundle)
    write_atomic(target, render_page(report, bundle).encode())
    return target


def _check_report_path(target: Path, run_folders: Sequence[Path]) -> None:
    """Raises ArtifactError if the report would replace another file or lie in a folder that does not exist."""
    if not target.parent.is_dir():
        raise ArtifactError(f"a report is written into a folder that exists; {target.parent} does not. Make it first, or name another file")
    resolved = target.resolve()
    for folder in (folder.resolve() for folder in run_folders):
        if resolved.is_relative_to(folder) and not (resolved.parent == folder and fnmatchcase(resolved.name, OWN)):
            raise ArtifactError(
                f"within the run folder {folder} a report is called {OWN}, so that it replaces nothing of the run; got {target}. Name "
                f"{folder / FILE}, or a file elsewhere"
            )
    try:
        is_report = target.is_file() and f'id="{DATA}"'.encode() in target.read_bytes()
    except OSError:
        is_report = False
    if target.exists() and not is_report:
        raise ArtifactError(f"only a report that headcount wrote is replaced; {target} is another file. Remove it, or name another file")


def fit_report(collected: ReportData, max_bytes: int, front_end: FrontEnd) -> contract.Report:
    """Returns the report with as many attention maps as fit into `max_bytes`, and a sentence about those left out."""
    shell = len(render_page({**collected.report, "runs": [], "left_out": []}, front_end).encode())
    most = max((len(maps.sentences) for maps in collected.maps), default=0)
    steps = [(number, 1.0) for number in range(most, 1 if most > 1 else 0, -1)]
    steps += [(number, share) for share in (0.5, 0.25) for number in (2, 1) if number <= most]
    steps += [(1, share) for share in (0.125, 0.0625) if most]
    for n_sentences, share in steps:
        report = _report_with_maps(collected, n_sentences, share)
        if shell + len(report_to_json(report)) <= max_bytes:
            return report
    report = _report_with_maps(collected, 0, 0.0)
    size = shell + len(report_to_json(report))
    if size > max_bytes:
        report = _without_token_examples(report)
        size = shell + len(report_to_json(report))
    if size > max_bytes:
        report = _without_long_tables(report)
        size = shell + len(report_to_json(report))
    if size > HARD_MB * MEGABYTE:
        raise ArtifactError(
            f"the tables of this run alone take {size / MEGABYTE:.1f} MB, more than the {HARD_MB:g} MB that a report may have; look at them with "
            "headcount serve, or at the csv and parquet files of the run folder"
        )
    if size > max_bytes:
        report["left_out"].append(too_large_sentence(size, max_bytes))
    return report


def too_large_sentence(size: int, max_bytes: int) -> str:
    """Returns the sentence about a file that exceeds the size asked for."""
    return (
        f"The page and its tables alone take {size / MEGABYTE:.2g} MB, so the file could not be made as small as the {max_bytes / MEGABYTE:g} MB "
        "that were asked for."
    )


def _report_with_maps(collected: ReportData, n_sentences: int, head_share: float) -> contract.Report:
    runs: list[contract.RunData] = []
    notes = list(collected.report["left_out"])
    for run, maps in zip(collected.report["runs"], collected.maps, strict=True):
        heads = None if head_share == 1.0 else choose_heads_with_maps(run["scores"], maps, head_share)
        packed = maps.pack_sentences(n_sentences, heads) if n_sentences else None
        runs.append({**run, "attention": packed, "attention_left_out": bool(maps.sentences) and packed is None})
        notes += _notes_on_left_out_maps(run["name"] if len(collected.maps) > 1 else "", maps, n_sentences, heads)
    return {**collected.report, "runs": runs, "left_out": notes}


def choose_heads_with_maps(scores: Sequence[contract.Score], maps: RunAttentionMaps, head_share: float) -> list[list[int]]:
    """Returns for every block the heads whose maps are kept: the most important ones of the model by the first importance, else the first."""
    score = next((score for score in scores if score["kind"] == "importance"), None)
    n_heads = sum(maps.sizes)
    values = [0.0] * n_heads if score is None else [0.0 if value is None else value for value in score["values"]]
    sign = -1.0 if score is None or score["higher_is_keep"] else 1.0
    best = set(sorted(range(n_heads), key=lambda head: (sign * values[head], head))[: max(1, round(head_share * n_heads))])
    by_block, start = [], 0
    for size in maps.sizes:
        by_block.append([position for position in range(size) if start + position in best])
        start += size
    return by_block


def _notes_on_left_out_maps(run_name: str, maps: RunAttentionMaps, n_sentences: int, included_heads: IncludedHeads) -> list[str]:
    """Returns the sentences about attention maps that are left out; a run is named if there are two."""
    of = f" of {run_name}" if run_name else ""
    total, n_kept = len(maps.sentences), min(n_sentences, len(maps.sentences))
    if not total:
        return []
    if not n_kept:
        return [
            f"All attention maps{of} are left out, since the file would be larger than asked for: headcount report with a larger max_mb, or "
            "headcount serve, shows them."
        ]
    sentences = (
        [f"Attention maps{of} of {total - n_kept} of {total} sentences are left out, for the size of the file."] if n_kept < total else []
    )
    if included_heads is not None:
        n_heads = sum(map(len, included_heads))
        sentences.append(
            f"Attention maps{of} of the {sum(maps.sizes) - n_heads} least important of {sum(maps.sizes)} heads are left out, for the "
            "size of the file."
        )
    return sentences


def _without_token_examples(report: contract.Report) -> contract.Report:
    empty: dict[str, list[object]] = {"top": [], "middle": [], "random": []}
    bare: list[contract.RunData] = [
        run if run["profiles"] is None else {**run, "profiles": {**run["profiles"], "examples": [empty] * len(run["heads"])}}
        for run in report["runs"]
    ]
    return {
        **report,
        "runs": bare,
        "left_out": [*report["left_out"], "Examples of tokens on the pages of heads are left out, for the size of the file."],
    }


def _without_long_tables(report: contract.Report) -> contract.Report:
    """Returns the report without the tables of studies that are too long to read, such as those with a row for every head."""

    def keep_printed_tables(result: contract.StudyResultData) -> contract.StudyResultData:
        return {**result, "tables": [table for table in result["tables"] if table["is_printed"]]}

    runs: list[contract.RunData] = []
    for run in report["runs"]:
        studies: list[contract.StudyPage] = [{**study, "result": keep_printed_tables(study["result"])} for study in run["studies"]]
        papers: list[contract.PaperPage] = []
        for paper in run["papers"]:
            items: list[contract.PaperItem] = [
                item if item["result"] is None else {**item, "result": keep_printed_tables(item["result"])} for item in paper["items"]
            ]
            papers.append({**paper, "items": items})
        runs.append({**run, "studies": studies, "papers": papers})
    if runs == report["runs"]:
        return report
    note = "Long tables of studies are left out, for the size of the file; they are in the folders studies and papers of the run, as csv."
    return {**report, "runs": runs, "left_out": [*report["left_out"], note]}
