"""`headcount score`: scores all heads, judges them and prints the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from headcount.app.console.format import format_head_bound, format_rounding_warning, format_verdicts
from headcount.app.console.heat_map import format_heat_map
from headcount.app.console.inputs import ModelAndTaskOptions
from headcount.app.console.models import open_named_task, open_task_model, set_run_description
from headcount.app.console.session import Session
from headcount.core.damage import HeadVerdicts
from headcount.core.scores import Scores
from headcount.core.stats import agreement as stats
from headcount.core.stats.agreement import Agreement
from headcount.core.stats.samples import Estimate
from headcount.core.tolerance import Tolerance
from headcount.importance.rankings import RankedHead, agreements, check_n_lowest, rank_heads, stabilities
from headcount.importance.score import parse_methods
from headcount.importance.settings import ScoreSettings
from headcount.runs.store import Run
from headcount.workflows.score import judge_into, score_into

N_SHOWN = 48
"""Up to this many heads are all shown without --all."""


class VerdictOptions(NamedTuple):
    """How heads are judged: how many units count as the lowest, what a safe head may cost, and the confidence."""

    lowest: int | None
    tolerance: Tolerance
    level: float


class ScoreReport(NamedTuple):
    """Scores by method with what is derived from them."""

    scores: Mapping[str, Scores]
    rankings: Mapping[str, list[RankedHead]]
    verdicts: Mapping[str, HeadVerdicts]
    agreements: Mapping[str, Agreement]
    stabilities: Mapping[str, Sequence[stats.Stability]]

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        scores = {
            label: {
                "higher_is_keep": scores.higher_is_keep,
                "normalise": scores.normalise,
                "n_examples": scores.n_examples,
                "data": scores.data,
                "conditions": dict(scores.conditions),
                "heads": [{**asdict(row), "head": str(row.head)} for row in self.rankings[label]],
                "verdicts": self.verdicts[label].to_dict() if label in self.verdicts else None,
                "columns": {name: list(column) for name, column in scores.columns.items()},
                "stability": [asdict(row) for row in self.stabilities.get(label, ())],
            }
            for label, scores in self.scores.items()
        }
        return {"scores": scores, "agreement": {label: asdict(agreement) for label, agreement in self.agreements.items()}}


def _show_adaptive_decisions(session: Session, scores: Scores) -> None:
    """Prints what an adaptive run decided, at which confidence, and what share of the ablations it saved."""
    conditions, n_read = scores.conditions, scores.columns["examples"]
    saved = 1 - sum(n_read) / (len(n_read) * max(n_read))
    session.write_line(
        f"with {conditions['confidence']:.0%} confidence for all together, these are among the {conditions['adaptive']} lowest units: "
        f"{', '.join(conditions['lowest']) or 'none is decided'}; not decided on {scores.n_examples} examples: "
        f"{', '.join(conditions['open']) or 'none'}; {saved:.0%} of the ablations were spared"
    )
    session.write_line("")


def _show_scores(session: Session, report: ScoreReport, method_label: str, confidence: float, shows_all: bool) -> None:
    """Prints the heat map and the table of the heads of one method, with the verdicts on heads removed alone where it measures what is lost."""
    scores, verdicts = report.scores[method_label], report.verdicts.get(method_label)
    session.write_line(f"{scores.label}: {'more' if scores.higher_is_keep else 'less'} means keep; tenths of all heads, 9 to keep first")
    for line in format_heat_map(scores):
        session.write_line(line)
    session.write_line("")
    order = sorted(report.rankings[method_label], key=lambda row: row.rank)
    listed = order if shows_all or len(order) <= N_SHOWN else [*order[:10], *order[-20:]]
    verdict_columns = ["costs at most", "safe alone"] if verdicts is not None else []
    columns = ["rank", "head", "score", f"{confidence:.0%} interval", "rank from", "to", "surely lowest", *verdict_columns, *scores.columns]
    position = {head: number for number, head in enumerate(scores.heads)}
    safe_words = {None: "", True: "yes", False: "no"}
    table = [
        (
            row.rank,
            row.head,
            f"{row.value:.4g} ± {row.stderr:.2g}" if row.stderr else f"{row.value:.4g}",
            "" if row.low is None else f"{row.low:.4g} … {row.high:.4g}",
            "" if row.rank_low is None else row.rank_low,
            "" if row.rank_high is None else row.rank_high,
            "" if row.is_lowest is None else "yes" if row.is_lowest else "no",
            *([] if verdicts is None else (format_head_bound(verdicts, verdicts[row.head]), safe_words[verdicts[row.head].safe])),
            *(f"{column[position[row.head]]:{'+' if name.endswith('change') else ''}.4g}" for name, column in scores.columns.items()),
        )
        for row in listed
    ]
    session.write_table(columns, table, right_aligned=("rank", "rank from", "to"))
    if len(listed) < len(order):
        session.write_note(f"{len(order) - len(listed)} heads in between are left out; --all shows them")
    if verdicts is not None:
        session.write_line(format_verdicts(verdicts))
        session.write_line("")


def _show_agreements_with_ablation(session: Session, agreements: Mapping[str, Agreement]) -> None:
    rows = [
        (
            label,
            f"{agreement.spearman.value:.2f}",
            f"{agreement.spearman.low:.2f} … {agreement.spearman.high:.2f}",
            f"{agreement.spearman.p:.2g}",
            f"{agreement.spearman.without_noise:.2f}",
            f"{agreement.lowest.shared} of {agreement.lowest.k} ({agreement.lowest.expected * agreement.lowest.k:.1f} by chance)",
            f"{agreement.highest.shared} of {agreement.highest.k}",
            f"{agreement.ceiling:.2f}",
        )
        for label, agreement in agreements.items()
    ]
    if rows:
        session.write_table(
            ("against ablation", "Spearman", "95% interval", "p", "without noise", "lowest shared", "highest shared", "ceiling"), rows
        )


def _show_stability(session: Session, scores: Scores, rows: Sequence[stats.Stability]) -> None:
    def format_estimate(estimate: Estimate | None) -> str:
        return "" if estimate is None else f"{estimate.value:.2f} ({estimate.low:.2f} … {estimate.high:.2f})"

    names = ("examples", "Spearman with all", "lowest in common", "Spearman of two such sets", "their lowest in common")
    table = [(row.size, *map(format_estimate, (row.spearman, row.overlap, row.disjoint_spearman, row.disjoint_overlap))) for row in rows]
    session.write_line(f"{scores.method}: stability of the ranking")
    session.write_table(names, table, right_aligned=("examples",))


def score_model(
    session: Session,
    data: ModelAndTaskOptions,
    method_names: Sequence[str],
    settings: ScoreSettings,
    run: Run | None,
    options: VerdictOptions,
    *,
    shows_stability: bool,
    shows_all: bool,
) -> None:
    """Scores all heads by some methods, in a run if there is one, and prints scores and verdicts."""
    methods = parse_methods(method_names)
    model, heads, folder = open_task_model(session, data)
    check_n_lowest(options.lowest, len(heads.units()))
    if run is not None:
        set_run_description(run, session, data, model, heads, {"by": list(map(str, methods)), **settings.to_dict(), "limit": data.limit})
    task = open_named_task(session, data, model, folder) if any(method.reads_data for method in methods) else None
    with session.progress("scoring") as advance:
        scores = score_into(run, model, task, methods, settings, progress=advance)
    if run is not None:
        session.write_note(f"kept in {run.folder}")
    verdicts: dict[str, HeadVerdicts] = {}
    if task is not None and settings.adaptive is None:
        with session.progress("removing single heads, on the report split") as advance:
            verdicts = judge_into(run, model, task, methods, settings, tolerance=options.tolerance, level=options.level, progress=advance)
    report = ScoreReport(
        scores,
        {name: rank_heads(table, k=options.lowest, level=options.level, seed=data.seed) for name, table in scores.items()},
        verdicts,
        agreements(scores, seed=data.seed) if "ablation" in scores else {},
        {name: stabilities(table, seed=data.seed) for name, table in scores.items()} if shows_stability else {},
    )
    _show_report(session, report, options.level, shows_all)
    session.write_json({"model": data.model, **report.to_dict()})
    session.suggest_next("study", "transfer", *([run.folder, "OTHER_RUN"] if run is not None else ["--help"]))


def _show_report(session: Session, report: ScoreReport, confidence: float, shows_all: bool) -> None:
    for label, scores in report.scores.items():
        _show_scores(session, report, label, confidence, shows_all)
        if unresolved := scores.heads_within_rounding():
            session.write_note(format_rounding_warning(label, list(map(str, unresolved))))
        if "adaptive" in scores.conditions:
            _show_adaptive_decisions(session, scores)
        if report.stabilities.get(label):
            _show_stability(session, scores, report.stabilities[label])
    _show_agreements_with_ablation(session, report.agreements)
