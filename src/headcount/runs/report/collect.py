"""The data of the report page, collected from run folders in the shape of web/src/contract.ts."""

from __future__ import annotations

from dataclasses import dataclass, field

from headcount.runs.report import contract
from headcount.runs.report.attention import RunAttentionMaps, collect_profiles
from headcount.runs.report.bench import collect_bench_rows
from headcount.runs.report.compare import compare_runs_or_give_reason
from headcount.runs.report.curves import collect_curves
from headcount.runs.report.repeat import PruneCommand, format_prune_call
from headcount.runs.report.roles import find_roles, pack_roles, untested_roles_table
from headcount.runs.report.scores import collect_scores, collect_verdicts
from headcount.runs.report.sentences import summary_sentences, warning_sentences
from headcount.runs.report.studies import collect_papers, collect_studies
from headcount.runs.schema import HeadsRecord
from headcount.runs.store import Run

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ReportData:
    """The data of the page without attention maps, and the maps of every run, which are added as the size of the file allows."""

    report: contract.Report
    maps: list[RunAttentionMaps] = field(default_factory=list)

    def with_all_maps(self) -> contract.Report:
        """Returns the report with all attention maps."""
        runs: list[contract.RunData] = [
            {**run, "attention": maps.pack_sentences()} for run, maps in zip(self.report["runs"], self.maps, strict=True)
        ]
        return {**self.report, "runs": runs}


def collect_report(run: Run, run_b: Run | None = None, *, prune_command: PruneCommand = format_prune_call) -> ReportData:
    """Returns the report of a run, or of two runs with their comparison B − A; raises ArtifactError for an incomplete run.

    `prune_command` says how a pruned model is made again.
    """
    runs = [run, *([run_b] if run_b is not None else [])]
    for shown_run in runs:
        shown_run.check_complete()
    data, maps = zip(*(_collect_run_data(shown_run, prune_command) for shown_run in runs), strict=True)
    compared, reason = (None, "") if run_b is None else compare_runs_or_give_reason((run, data[0]), (run_b, data[1]))
    left_out = [reason] if reason else []
    report: contract.Report = {"schema": SCHEMA, "runs": list(data), "comparison": compared, "left_out": left_out, "live": None}
    return ReportData(report, list(maps))


def _collect_run_data(run: Run, prune_command: PruneCommand) -> tuple[contract.RunData, RunAttentionMaps]:
    record, heads = run.record(), run.heads()
    names = [head for block in heads.blocks for head in block.heads]
    roles = find_roles(run)
    curves, rows, notes = collect_curves(run, record, heads, prune_command)
    profiles, maps, missing = collect_profiles(run, names, heads.blocks)
    bench = collect_bench_rows(run, len(names))
    model = record.model
    data: contract.RunData = {
        "name": run.folder.resolve().name,
        "command": record.command,
        "task": record.task or None,
        "created": record.created,
        "updated": record.updated,
        "seed": record.seed,
        "model": {
            "name": model.name,
            "class_name": model.class_name,
            "model_type": model.model_type,
            "n_parameters": model.n_parameters,
            "weights": model.weights,
        },
        "versions": dict(record.versions),
        "machine": {name: value if isinstance(value, str | int | float) else None for name, value in record.machine.items()},
        "config": dict(record.config),
        "data": dict(record.data),
        "heads": names,
        "blocks": _pack_blocks(heads),
        "scores": collect_scores(run, names),
        "verdicts": collect_verdicts(run, names),
        "roles": None if roles is None else pack_roles(roles, names),
        "curves": curves,
        "bench": bench,
        "profiles": profiles,
        "attention": None,
        "attention_left_out": False,
        "tables": [] if roles is None else untested_roles_table(roles),
        "studies": collect_studies(run),
        "papers": collect_papers(run),
        "summary": summary_sentences(record, heads, curves, bench, rows),
        "warnings": [*warning_sentences(run, record, curves, bench), *notes, *missing],
    }
    return data, maps


def _pack_blocks(heads: HeadsRecord) -> list[contract.Block]:
    blocks: list[contract.Block] = []
    start = 0
    for block in heads.blocks:
        group_size = len(block.heads) // block.n_kv_heads if block.n_kv_heads else 0
        blocks.append(
            {
                "path": block.path,
                "kind": block.kind,
                "stack": block.stack,
                "layer": block.layer,
                "heads": list(range(start, start + len(block.heads))),
                "kv_group": [position // group_size for position in range(len(block.heads))] if group_size > 1 else None,
            }
        )
        start += len(block.heads)
    return blocks
