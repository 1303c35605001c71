"""Writes the report of a run, within a size: attention maps of the least important heads and the last sentences are left out first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from headcount.core.errors import ArtifactError
from headcount.core.files import check_place, write_atomic
from headcount.runs.report.attention import Maps
from headcount.runs.report.collect import Collected, collect
from headcount.runs.report.page import DATA, Bundle, bundle, data_text, page
from headcount.runs.store import Run

FILE, OWN = "report.html", "report*.html"
MAX_MB, HARD_MB = 2.0, 10.0
MEGABYTE = 10**6
Heads = list[list[int]] | None


def write_report(run: Run, other: Run | None = None, out: Path | None = None, *, max_mb: float = MAX_MB) -> Path:
    """Writes the report of a run, or of two, into one HTML file of at most `max_mb` megabytes; where it is."""
    if not 0 < max_mb <= HARD_MB:
        raise ArtifactError(
            f"the size of a report (max_mb) is a number above 0 and at most {HARD_MB:g} MB, so that it opens everywhere and can be mailed; got "
            f"{max_mb:g}. Name one between, such as {MAX_MB:g}"
        )
    target = Path(out) if out is not None else run.folder / FILE
    if target.is_dir():
        raise ArtifactError(f"{target} is a folder; name the file to write, such as {target / FILE}")
    if out is not None:
        _check_target(target, [run.folder, *([] if other is None else [other.folder])])
    check_place(target)
    text = page(fitted(collect(run, other), round(max_mb * MEGABYTE), made := bundle()), made)
    write_atomic(target, text.encode())
    return target


def _check_target(target: Path, folders: Sequence[Path]) -> None:
    """Refuses a place where the report would stand in for something else, or in a folder that does not exist."""
    if not target.parent.is_dir():
        raise ArtifactError(f"a report is written into a folder that exists; {target.parent} does not. Make it first, or name another file")
    here = target.resolve()
    for folder in (folder.resolve() for folder in folders):
        if here.is_relative_to(folder) and not (here.parent == folder and fnmatchcase(here.name, OWN)):
            raise ArtifactError(
                f"within the run folder {folder} a report is called {OWN}, so that it replaces nothing of the run; got {target}. Name "
                f"{folder / FILE}, or a file elsewhere"
            )
    if target.exists() and not _is_report(target):
        raise ArtifactError(f"only a report that headcount wrote is replaced; {target} is another file. Remove it, or name another file")


def _is_report(path: Path) -> bool:
    try:
        return path.is_file() and f'id="{DATA}"'.encode() in path.read_bytes()
    except OSError:
        return False


def fitted(collected: Collected, room: int, made: Bundle) -> dict[str, Any]:
    """The report with as many attention maps as fit into so many bytes, and a sentence about what does not."""
    shell = len(page({**collected.report, "runs": [], "left_out": []}, made).encode())
    for n_sentences, share in _sizes(max((len(maps.sentences) for maps in collected.maps), default=0)):
        report = _with_maps(collected, n_sentences, share)
        if shell + len(data_text(report)) <= room:
            return report
    report = _with_maps(collected, 0, 0.0)
    size = shell + len(data_text(report))
    if size > room:
        report = _without_examples(report)
        size = shell + len(data_text(report))
    if size > HARD_MB * MEGABYTE:
        raise ArtifactError(
            f"the tables of this run alone take {size / MEGABYTE:.1f} MB, more than the {HARD_MB:g} MB that a report may have; look at them with "
            "headcount serve, or at the csv and parquet files of the run folder"
        )
    if size > room:
        report["left_out"].append(too_large(size, room))
    return report


def too_large(size: int, room: int) -> str:
    """A sentence about a file that could not be made as small as asked for."""
    return (
        f"The page and its tables alone take {size / MEGABYTE:.2g} MB, so the file could not be made as small as the {room / MEGABYTE:g} MB that "
        "were asked for."
    )


def _sizes(most: int) -> Iterator[tuple[int, float]]:
    """How many sentences, and which share of heads, to try, from all down."""
    yield from ((number, 1.0) for number in range(most, 1, -1))
    yield from ((number, share) for share in (0.5, 0.25) for number in (2, 1) if number <= most)
    yield from ((1, share) for share in (0.125, 0.0625) if most)


def _with_maps(collected: Collected, n_sentences: int, share: float) -> dict[str, Any]:
    runs, notes = [], list(collected.report["left_out"])
    for run, maps in zip(collected.report["runs"], collected.maps, strict=True):
        heads = None if share == 1.0 else most_important(run, maps, share)
        packed = maps.pack_sentences(n_sentences, heads) if n_sentences else None
        runs.append({**run, "attention": packed, "attention_left_out": bool(maps.sentences) and packed is None})
        notes += _told(run, maps, n_sentences, heads, len(collected.maps) > 1)
    return {**collected.report, "runs": runs, "left_out": notes}


def most_important(run: dict[str, Any], maps: Maps, share: float) -> list[list[int]]:
    """The heads of every block whose maps are kept: the most important ones of the whole model, by the first importance; else the first."""
    score = next((score for score in run["scores"] if score["kind"] == "importance"), None)
    n_heads = sum(maps.sizes)
    values = [0.0] * n_heads if score is None else [0.0 if value is None else value for value in score["values"]]
    sign = -1.0 if score is None or score["higher_is_keep"] else 1.0
    best = set(sorted(range(n_heads), key=lambda head: (sign * values[head], head))[: max(1, round(share * n_heads))])
    found, start = [], 0
    for size in maps.sizes:
        found.append([place for place in range(size) if start + place in best])
        start += size
    return found


def _told(run: dict[str, Any], maps: Maps, n_sentences: int, heads: Heads, several: bool) -> list[str]:
    of = f" of {run['name']}" if several else ""
    total, shown = len(maps.sentences), min(n_sentences, len(maps.sentences))
    if not total:
        return []
    if not shown:
        return [
            f"All attention maps{of} are left out, since the file would be larger than asked for: headcount report --max-mb, or headcount serve, "
            "shows them."
        ]
    found = [f"Attention maps{of} of {total - shown} of {total} sentences are left out, for the size of the file."] if shown < total else []
    if heads is not None:
        kept = sum(map(len, heads))
        found.append(
            f"Attention maps{of} of the {sum(maps.sizes) - kept} least important of {sum(maps.sizes)} heads are left out, for the "
            "size of the file."
        )
    return found


def _without_examples(report: dict[str, Any]) -> dict[str, Any]:
    runs: Sequence[dict[str, Any]] = report["runs"]
    empty: dict[str, list[Any]] = {"top": [], "middle": [], "random": []}
    bare = [
        run if run["portraits"] is None else {**run, "portraits": {**run["portraits"], "examples": [empty] * len(run["heads"])}}
        for run in runs
    ]
    return {
        **report,
        "runs": bare,
        "left_out": [*report["left_out"], "Examples of tokens on the pages of heads are left out, for the size of the file."],
    }
