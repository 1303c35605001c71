"""`headcount score`: how much every head matters, by one method or several, with intervals and verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.heat_map import heat_map
from headcount.app.console.options import declared_option, split
from headcount.app.console.run_folder import Engine, Join, Out, RunFolder, Workers, describe
from headcount.app.console.session import Session
from headcount.importance.settings import ScoreSettings

if TYPE_CHECKING:
    from headcount.core.scores import Scores
    from headcount.core.stats import agreement as stats
    from headcount.core.stats.agreement import Agreement
    from headcount.importance.verdicts import Verdict

SHOWN = 48


class ScoreReport(NamedTuple):
    """Scores by method with what is derived from them."""

    scores: Mapping[str, Scores]
    verdicts: Mapping[str, list[Verdict]]
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
                "heads": [{**asdict(verdict), "head": str(verdict.head)} for verdict in self.verdicts[label]],
                "columns": {name: list(column) for name, column in scores.columns.items()},
                "stability": [asdict(row) for row in self.stabilities.get(label, ())],
            }
            for label, scores in self.scores.items()
        }
        return {"scores": scores, "agreement": {label: asdict(agreement) for label, agreement in self.agreements.items()}}


def _by(text: str) -> str:
    if not split(text):
        raise typer.BadParameter("--by needs the name of a method, such as gradient")
    return text


def _tolerance(value: float) -> float:
    if not math.isfinite(value):
        raise typer.BadParameter(f"--tolerance must be a finite number, got {value}")
    return value


By = Annotated[
    str, typer.Option("--by", metavar="NAME,…", callback=_by, help="Methods of `headcount ls importance`, as name or name:variant.")
]
Normalise = Annotated[str, declared_option(ScoreSettings, "normalise", "HOW")]
Lowest = Annotated[
    int | None, typer.Option("--lowest", min=1, metavar="K", help="How many units count as the lowest; a quarter by default.")
]
Tolerance = Annotated[
    float,
    typer.Option("--tolerance", callback=_tolerance, help="The rise of the loss up to which an ablated head counts as safe to remove."),
]
Level = Annotated[float, typer.Option("--level", min=0.5, max=0.999, help="The confidence of intervals and verdicts.")]
Stability = Annotated[bool, typer.Option("--stability", help="Also show how stable the ranking is by the number of examples.")]
AllHeads = Annotated[bool, typer.Option("--all", help="Show every head, however many there are.")]
Checkpointing = Annotated[bool, declared_option(ScoreSettings, "checkpointing")]
Generate = Annotated[bool, declared_option(ScoreSettings, "generate")]
Adaptive = Annotated[int | None, declared_option(ScoreSettings, "adaptive", "K")]


def _format_estimate(value: float, stderr: float | None) -> str:
    return f"{value:.4g} ± {stderr:.2g}" if stderr else f"{value:.4g}"


def _show_race(session: Session, scores: Scores) -> None:
    """Prints what an adaptive run decided, at which confidence, and what share of the ablations it saved."""
    conditions, n_read = scores.conditions, scores.columns["examples"]
    saved = 1 - sum(n_read) / (len(n_read) * max(n_read))
    session.line(
        f"with {conditions['confidence']:.0%} confidence for all together, these are among the {conditions['adaptive']} lowest units: "
        f"{', '.join(conditions['lowest']) or 'none is decided'}; not decided on {scores.n_examples} examples: "
        f"{', '.join(conditions['open']) or 'none'}; {saved:.0%} of the ablations were spared"
    )
    session.line("")


def _show_scores(session: Session, scores: Scores, verdicts: list[Verdict], level: float, all_heads: bool) -> None:
    from headcount.importance.verdicts import measures_loss

    session.line(f"{scores.label}: {'more' if scores.higher_is_keep else 'less'} means keep; tenths of all heads, 9 to keep first")
    for line in heat_map(scores):
        session.line(line)
    session.line("")
    order = sorted(verdicts, key=lambda verdict: verdict.rank)
    shown = order if all_heads or len(order) <= SHOWN else [*order[:10], *order[-20:]]
    safe = "safe" if measures_loss(scores) else "surely lowest"
    columns = ["rank", "head", "score", f"{level:.0%} interval", "rank from", "to", "P(lowest)", safe, *scores.columns]
    position = {head: number for number, head in enumerate(scores.heads)}
    table = [
        (
            verdict.rank,
            verdict.head,
            _format_estimate(verdict.value, verdict.stderr),
            "" if verdict.low is None else f"{verdict.low:.4g} … {verdict.high:.4g}",
            "" if verdict.rank_low is None else verdict.rank_low,
            "" if verdict.rank_high is None else verdict.rank_high,
            "" if verdict.p_lowest is None else f"{verdict.p_lowest:.2f}",
            "" if verdict.safe is None else "yes" if verdict.safe else "no",
            *(f"{column[position[verdict.head]]:{'+' if name.endswith('change') else ''}.4g}" for name, column in scores.columns.items()),
        )
        for verdict in shown
    ]
    session.table(columns, table, right=("rank", "rank from", "to", "P(lowest)"))
    if len(shown) < len(order):
        session.note(f"{len(order) - len(shown)} heads in between are left out; --all shows them")


def _show_agreements(session: Session, agreements: Mapping[str, Agreement]) -> None:
    rows = [
        (
            label,
            f"{agreement.spearman.value:.2f}",
            f"{agreement.spearman.low:.2f} … {agreement.spearman.high:.2f}",
            f"{agreement.spearman.p:.2g}",
            f"{agreement.lowest.shared} of {agreement.lowest.k} ({agreement.lowest.expected * agreement.lowest.k:.1f} by chance)",
            f"{agreement.highest.shared} of {agreement.highest.k}",
            f"{agreement.ceiling:.2f}",
        )
        for label, agreement in agreements.items()
    ]
    if rows:
        session.table(("against ablation", "Spearman", "95% interval", "p", "lowest shared", "highest shared", "ceiling"), rows)


def _show_stability(session: Session, scores: Scores, rows: Sequence[stats.Stability]) -> None:
    def format_interval(estimate: Any) -> str:
        return "" if estimate is None else f"{estimate.value:.2f} ({estimate.low:.2f} … {estimate.high:.2f})"

    names = ("examples", "Spearman with all", "lowest in common", "Spearman of two such sets", "their lowest in common")
    table = [(row.size, *map(format_interval, (row.spearman, row.overlap, row.disjoint_spearman, row.disjoint_overlap))) for row in rows]
    session.line(f"{scores.method}: stability of the ranking")
    session.table(names, table, right=("examples",))


@command
def run(
    session: Session,
    given: inputs.TaskOptions,
    by: By = "gradient",
    out: Out = None,
    workers: Workers = 1,
    engine: Engine = "local",
    join: Join = False,
    split_name: inputs.Split = "calibration",
    normalise: Normalise = "published",
    lowest: Lowest = None,
    tolerance: Tolerance = 0.01,
    level: Level = 0.95,
    stability: Stability = False,
    adaptive: Adaptive = None,
    all_heads: AllHeads = False,
    checkpointing: Checkpointing = False,
    generate: Generate = False,
) -> None:
    """Score every head on a task: heat map, ranking with intervals, and which heads are safe to remove."""
    with RunFolder(out, workers, engine, join).open(session) as run_folder:
        from headcount.importance.score import parse_methods
        from headcount.importance.verdicts import agreements, check_lowest, stabilities, verdicts
        from headcount.workflows.score import score_into

        methods = parse_methods(split(by))
        options: dict[str, Any] = {"normalise": normalise, "split": split_name, "seed": given.seed, "adaptive": adaptive, **given.reading}
        settings = ScoreSettings(**options, checkpointing=checkpointing, generate=generate)
        live, heads, folder = given.open_model(session)
        check_lowest(lowest, len(heads.units()))
        if run_folder is not None:
            describe(run_folder, session, given, live, heads, {"by": list(map(str, methods)), **settings.to_dict(), "limit": given.limit})
        data = given.open_task(session, live, folder) if any(method.reads_data for method in methods) else None
        with session.progress("scoring") as advance:
            scores = score_into(run_folder, live, data, methods, settings, progress=advance)
        if run_folder is not None:
            session.note(f"kept in {out}")
        result = ScoreReport(
            scores,
            {name: verdicts(table, k=lowest, tolerance=tolerance, level=level, seed=given.seed) for name, table in scores.items()},
            agreements(scores, seed=given.seed) if "ablation" in scores else {},
            {name: stabilities(table, seed=given.seed) for name, table in scores.items()} if stability else {},
        )
        _show_report(session, result, level, all_heads)
        session.result({"model": given.model, **result.to_dict()})
        session.next("study", "transfer", *([out, "OTHER_RUN"] if out is not None else ["--help"]))


def _show_report(session: Session, report: ScoreReport, level: float, all_heads: bool) -> None:
    for label, scores in report.scores.items():
        _show_scores(session, scores, report.verdicts[label], level, all_heads)
        if unresolved := scores.heads_within_rounding():
            names = f"{', '.join(map(str, unresolved[:8]))}{' …' if len(unresolved) > 8 else ''}"
            session.note(
                f"{label}: rounding alone moves the score of {names} by more than its standard error, so it depends on the processor"
            )
        if "adaptive" in scores.conditions:
            _show_race(session, scores)
        if report.stabilities.get(label):
            _show_stability(session, scores, report.stabilities[label])
    _show_agreements(session, report.agreements)
