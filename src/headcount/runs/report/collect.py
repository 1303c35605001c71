"""All that the page shows, as plain data, out of run folders: the contract of web/src/contract.ts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headcount.core.registry import STUDIES
from headcount.runs.report.attention import Maps, profiles_of
from headcount.runs.report.bench import bench_of
from headcount.runs.report.compare import comparison
from headcount.runs.report.curves import curves_of
from headcount.runs.report.plain import short
from headcount.runs.report.roles import find_roles, roles_of, untested_table
from headcount.runs.report.scores import about, scores_of
from headcount.runs.report.sentences import summary_of, warnings_of
from headcount.runs.schema import BlockRecord, HeadsRecord
from headcount.runs.store import Run

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Collected:
    """The data of the page without attention maps, and the maps of every run, to be packed as room allows."""

    report: dict[str, Any]
    maps: list[Maps] = field(default_factory=list)

    def whole(self) -> dict[str, Any]:
        """The report with all maps."""
        runs = [{**run, "attention": maps.pack_sentences()} for run, maps in zip(self.report["runs"], self.maps, strict=True)]
        return {**self.report, "runs": runs}


def collect(run: Run, other: Run | None = None) -> Collected:
    """The report of a run, or of two that are compared: B − A; ArtifactError for a run of which something is missing or another run's."""
    runs = [run, *([other] if other is not None else [])]
    for shown_run in runs:
        shown_run.check_whole()
    made = [_run_data(shown_run) for shown_run in runs]
    datas, maps = [data for data, _ in made], [maps for _, maps in made]
    compared, left_out = None, []
    if other is not None:
        compared, why = comparison((run, datas[0]), (other, datas[1]))
        left_out += [why] if why else []
    return Collected({"schema": SCHEMA, "runs": datas, "comparison": compared, "left_out": left_out, "live": None}, maps)


def _run_data(run: Run) -> tuple[dict[str, Any], Maps]:
    record, heads = run.record(), run.heads()
    names = [head for block in heads.blocks for head in block.heads]
    roles = find_roles(run)
    curves, rows, notes = curves_of(run, record, heads)
    profiles, maps, missing = profiles_of(run, names, heads.blocks)
    data: dict[str, Any] = {
        "name": run.folder.resolve().name,
        "command": record.command,
        "task": record.task or None,
        "created": record.created,
        "updated": record.updated,
        "seed": record.seed,
        "model": {name: getattr(record.model, name) for name in ("name", "class_name", "model_type", "n_parameters", "weights")},
        "versions": dict(record.versions),
        "machine": {name: value if isinstance(value, str | int | float) else None for name, value in record.machine.items()},
        "config": dict(record.config),
        "data": dict(record.data),
        "heads": names,
        "blocks": _blocks(heads),
        "scores": scores_of(run, names),
        "roles": None if roles is None else roles_of(roles, names),
        "curves": curves,
        "bench": bench_of(run, len(names)),
        "portraits": profiles,
        "attention": None,
        "attention_left_out": False,
        "tables": [*_tables(run), *([] if roles is None else untested_table(roles))],
    }
    data["summary"] = summary_of(record, heads, data, rows)
    data["warnings"] = [*warnings_of(run, record, data), *notes, *missing]
    return data, maps


def _blocks(heads: HeadsRecord) -> list[dict[str, Any]]:
    found, start = [], 0
    for block in heads.blocks:
        found.append(
            {
                "path": block.path,
                "kind": block.kind,
                "stack": block.stack,
                "layer": block.layer,
                "heads": list(range(start, start + len(block.heads))),
                "kv_group": _groups(block),
            }
        )
        start += len(block.heads)
    return found


def _groups(block: BlockRecord) -> list[int] | None:
    size = len(block.heads) // block.n_kv_heads if block.n_kv_heads else 0
    return [place // size for place in range(len(block.heads))] if size > 1 else None


def _tables(run: Run) -> list[dict[str, Any]]:
    """The rows of studies, as they are."""
    found = []
    for name, artifact in run.results("study").items():
        rows: Sequence[Mapping[str, Any]] = artifact.content["rows"]
        columns = list(dict.fromkeys(key for row in rows for key in row))
        table = [[_value(row.get(column)) for column in columns] for row in rows]
        found.append({"name": name, "about": about(STUDIES, name), "columns": columns, "rows": table})
    return found


def _value(value: Any) -> str | float | int | bool | None:
    if value is None or isinstance(value, bool | str):
        return value
    return short(value) if isinstance(value, int | float) else str(value)
