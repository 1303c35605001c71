"""`headcount score`: how much every head matters, by one method or several, with how sure that is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headcount.app.console import inputs
from headcount.app.console.command import command
from headcount.app.console.heat_map import heat_map
from headcount.app.console.options import split
from headcount.app.console.run_folder import Engine, Join, Out, RunFolder, Workers, describe
from headcount.app.console.session import Session
from headcount.core.errors import unknown

if TYPE_CHECKING:
    from headcount.core.scores import Scores
    from headcount.importance.verdicts import Verdict

SHOWN = 48


def _by(text: str) -> str:
    if not split(text):
        raise typer.BadParameter("--by needs the name of a method, such as gradient")
    return text


def _normalise(name: str) -> str:
    from headcount.core.scores import NORMALISATIONS

    if name not in NORMALISATIONS:
        raise unknown("normalisation", name, NORMALISATIONS)
    return name


def _tolerance(value: float) -> float:
    if not math.isfinite(value):
        raise typer.BadParameter(f"--tolerance must be a finite number, got {value}")
    return value


By = Annotated[
    str, typer.Option("--by", metavar="NAME,…", callback=_by, help="Methods of `headcount ls importance`, as name or name:variant.")
]
Normalise = Annotated[
    str,
    typer.Option(
        "--normalise",
        metavar="HOW",
        callback=_normalise,
        help="published: as belongs to the method (gradient: by the ℓ2 norm of each layer); or none, layer, global, standard for all.",
    ),
]
Lowest = Annotated[
    int | None, typer.Option("--lowest", min=1, metavar="K", help="How many units count as the lowest; a quarter unless told.")
]
Tolerance = Annotated[
    float,
    typer.Option("--tolerance", callback=_tolerance, help="The rise of the loss up to which an ablated head counts as safe to remove."),
]
Level = Annotated[float, typer.Option("--level", min=0.5, max=0.999, help="The confidence of intervals and verdicts.")]
Stability = Annotated[bool, typer.Option("--stability", help="Also show how stable the ranking is by the number of examples.")]
Everything = Annotated[bool, typer.Option("--all", help="Show every head, however many there are.")]
Checkpointing = Annotated[bool, typer.Option("--checkpointing", help="Less memory, more time in the backward pass.")]
Generate = Annotated[bool, typer.Option("--generate", help="Let ablations generate text for metrics such as BLEU (slow).")]
Adaptive = Annotated[int | None, typer.Option("--adaptive", min=1, metavar="K", help="Ablate only until the K lowest units are known.")]


def _plus(value: float | None, error: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if not error else f"{value:.4g} ± {error:.2g}"


def _show_race(session: Session, scores: Scores) -> None:
    """What an adaptive run decided, how sure that is, and what it spared."""
    facts, read = scores.conditions, scores.columns["examples"]
    spared = 1 - sum(read) / (len(read) * max(read))
    session.line(
        f"with {facts['confidence']:.0%} confidence for all together, these are among the {facts['adaptive']} lowest units: "
        f"{', '.join(facts['lowest']) or 'none is decided'}; not decided on {scores.n_examples} examples: {', '.join(facts['open']) or 'none'}; "
        f"{spared:.0%} of the ablations were spared"
    )
    session.line("")


def _show(session: Session, scores: Scores, rows: list[Verdict], level: float, everything: bool) -> None:
    session.line(f"{scores.label}: {'more' if scores.higher_is_keep else 'less'} means keep; tenths of all heads, 9 to keep first")
    for line in heat_map(scores):
        session.line(line)
    session.line("")
    order = sorted(rows, key=lambda row: row.rank)
    shown = order if everything or len(order) <= SHOWN else [*order[:10], *order[-20:]]
    from headcount.importance.verdicts import measures_loss

    verdict = "safe" if measures_loss(scores) else "surely lowest"
    columns = ["rank", "head", "score", f"{level:.0%} interval", "rank from", "to", "P(lowest)", verdict, *scores.columns]
    place = {head: i for i, head in enumerate(scores.heads)}
    table = [
        (
            row.rank,
            row.head,
            _plus(row.value, row.stderr),
            "" if row.low is None else f"{row.low:.4g} … {row.high:.4g}",
            "" if row.rank_low is None else row.rank_low,
            "" if row.rank_high is None else row.rank_high,
            "" if row.p_lowest is None else f"{row.p_lowest:.2f}",
            "" if row.safe is None else "yes" if row.safe else "no",
            *(f"{column[place[row.head]]:{'+' if name.endswith('change') else ''}.4g}" for name, column in scores.columns.items()),
        )
        for row in shown
    ]
    session.table(columns, table, right=("rank", "rank from", "to", "P(lowest)"))
    if len(shown) < len(order):
        session.note(f"{len(order) - len(shown)} heads in between are left out; --all shows them")


def _show_agreement(session: Session, found: dict[str, Any]) -> None:
    rows = [
        (
            name,
            f"{made.spearman.value:.2f}",
            f"{made.spearman.low:.2f} … {made.spearman.high:.2f}",
            f"{made.spearman.p:.2g}",
            f"{made.lowest.shared} of {made.lowest.k} ({made.lowest.expected * made.lowest.k:.1f} by chance)",
            f"{made.highest.shared} of {made.highest.k}",
            f"{made.ceiling:.2f}",
        )
        for name, made in found.items()
    ]
    if rows:
        session.table(("against ablation", "Spearman", "95% interval", "p", "lowest shared", "highest shared", "ceiling"), rows)


def _show_stability(session: Session, scores: Scores, rows: Any) -> None:
    def cell(estimate: Any) -> str:
        return "" if estimate is None else f"{estimate.value:.2f} ({estimate.low:.2f} … {estimate.high:.2f})"

    table = [(row.size, cell(row.spearman), cell(row.overlap), cell(row.disjoint_spearman), cell(row.disjoint_overlap)) for row in rows]
    names = ("examples", "Spearman with all", "lowest in common", "Spearman of two such sets", "their lowest in common")
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
    everything: Everything = False,
    checkpointing: Checkpointing = False,
    generate: Generate = False,
) -> None:
    """Score every head on a task: heat map, ranking with intervals, and which heads are safe to remove."""
    with RunFolder(out, workers, engine, join).open(session) as folder_of_run:
        from headcount.importance.score import Method
        from headcount.importance.verdicts import agreements, check_lowest, stabilities, verdicts
        from headcount.workflows.score import score_into

        methods = [str(Method.parse(name)) for name in split(by)]
        live, heads, folder = given.open_model(session)
        check_lowest(lowest, len(heads.units()))
        asked: dict[str, Any] = {"normalise": normalise, "split": split_name, "seed": given.seed, "adaptive": adaptive}
        asked |= {"checkpointing": checkpointing, "generate": generate}
        if folder_of_run is not None:
            describe(folder_of_run, session, given, live, heads, {"by": methods, **asked, "limit": given.limit})
        data = given.open_task(session, live, folder) if any(Method.parse(name).reads_data for name in methods) else None
        with session.progress("scoring") as advance:
            found = score_into(folder_of_run, live, data, methods, progress=advance, **asked, **given.reading)
        if folder_of_run is not None:
            session.note(f"kept in {out}")
        judged = {name: verdicts(scores, k=lowest, tolerance=tolerance, level=level, seed=given.seed) for name, scores in found.items()}
        agreed = agreements(found, seed=given.seed) if "ablation" in found else {}
        stable = {name: stabilities(scores, seed=given.seed) for name, scores in found.items()} if stability else {}
        for name, scores in found.items():
            _show(session, scores, judged[name], level, everything)
            if unresolved := scores.heads_within_rounding():
                names = f"{', '.join(map(str, unresolved[:8]))}{' …' if len(unresolved) > 8 else ''}"
                session.note(
                    f"{name}: rounding alone moves the score of {names} by more than its standard error, so it depends on the processor"
                )
            if "adaptive" in scores.conditions:
                _show_race(session, scores)
            if stable.get(name):
                _show_stability(session, scores, stable[name])
        _show_agreement(session, agreed)
        session.result(_result(given.model, found, judged, agreed, stable))
        session.next("study", "transfer", *([out, "OTHER_RUN"] if out is not None else ["--help"]))


def _result(model: str, found: dict[str, Scores], judged: Any, agreed: Any, stable: Any) -> dict[str, Any]:
    from dataclasses import asdict

    def rows(name: str) -> list[dict[str, Any]]:
        return [{**asdict(row), "head": str(row.head)} for row in judged[name]]

    scores = {
        name: {
            "higher_is_keep": made.higher_is_keep,
            "normalise": made.normalise,
            "n_examples": made.n_examples,
            "data": made.data,
            "conditions": dict(made.conditions),
            "heads": rows(name),
            "columns": {key: list(column) for key, column in made.columns.items()},
            "stability": [asdict(row) for row in stable.get(name, ())],
        }
        for name, made in found.items()
    }
    return {"model": model, "scores": scores, "agreement": {name: asdict(made) for name, made in agreed.items()}}
