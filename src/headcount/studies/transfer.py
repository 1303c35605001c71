"""Do the same heads matter on other data? Pearson and Spearman of two or more score sets, with intervals (Michel et al. 2019, section 4.3).

The interval and p are those of the observed correlation when examples are drawn again; what it would be without the noise of few examples stands
beside it under that name. Scores come from run folders: one run against others, or the methods of one run. Published for ablation across domains:
0.56 to 0.68 (Pearson).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headcount.app.console.command import command
from headcount.app.console.options import Seed
from headcount.app.console.session import Session
from headcount.core.errors import ArtifactError

if TYPE_CHECKING:
    from headcount.core.scores import Scores
    from headcount.core.stats.agreement import Correlated
    from headcount.core.stats.ranks import Overlap
    from headcount.core.stats.samples import Estimate

Runs = Annotated[list[Path], typer.Argument(metavar="RUN RUN…", help="Run folders of the same model scored on different data.")]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="The method to compare; else every method that all runs have.")]


@dataclass(frozen=True, slots=True)
class Pair:
    """How far two score sets of one method agree."""

    method: str
    a: str
    b: str
    pearson: Correlated
    spearman: Correlated
    lowest: Overlap
    same_data: bool


def transfer(sets: Mapping[str, Scores], *, seed: int = 0) -> list[Pair]:
    """Every pair of score sets of one method, by the names of the sets."""
    from headcount.core.scores import SCALED
    from headcount.core.stats.agreement import agreement, correlate
    from headcount.importance.verdicts import signed_samples
    from headcount.runs.scores import check_same_heads

    check_same_heads(list(sets.values()))
    found = []
    for (name_a, a), (name_b, b) in combinations(sets.items(), 2):
        if a.normalise != b.normalise:
            raise ArtifactError(
                f"{a.method} is {SCALED[a.normalise]} in {name_a} and {SCALED[b.normalise]} in {name_b}; score both runs with the same normalisation"
            )
        left, right = signed_samples(a), signed_samples(b)
        paired = a.data == b.data and left.n_groups == right.n_groups
        agreed = agreement(left, right, max(1, len(a.heads) // 4), seed=seed, paired=paired)
        pearson = correlate(left, right, seed=seed, by="pearson", paired=paired)
        found.append(Pair(a.method, name_a, name_b, pearson, agreed.spearman, agreed.lowest, bool(a.data) and a.data == b.data))
    return found


def _sets(folders: list[Path], by: str | None) -> dict[str, dict[str, Scores]]:
    """For every method that all runs have, its scores by run; without one named, those alone that examples move."""
    from headcount.runs.scores import all_scores
    from headcount.runs.store import Run

    opened = {str(folder): all_scores(Run.open(folder)) for folder in folders}
    if len(opened) < 2:
        raise ArtifactError("transfer compares runs: name two or more different run folders")
    shared = set.intersection(*(set(scores) for scores in opened.values()))
    if by is None and not shared:
        raise ArtifactError(
            f"these runs have no method in common: {', '.join(f'{name} has {list(scores)}' for name, scores in opened.items())}"
        )
    methods = [by] if by is not None else sorted(shared)
    if by is not None and by not in shared:
        lacking = next(name for name, scores in opened.items() if by not in scores)
        raise ArtifactError(f"{lacking} has no scores by '{by}'; it has {', '.join(opened[lacking]) or 'none'}")
    sets = {method: {name: scores[method] for name, scores in opened.items()} for method in methods}
    moved = {method: scores for method, scores in sets.items() if all(one.samples and one.samples.n > 1 for one in scores.values())}
    if not moved:
        raise ArtifactError(
            f"{', '.join(sets)} has no samples of 2 examples or more in each run, so nothing tells how sure an agreement is; "
            "score the runs by a method that reads data, such as gradient"
        )
    return moved


def _artifact(correlation: Correlated | Estimate) -> str:
    """A correlation and its interval as text."""
    return f"{correlation.value:.2f} ({correlation.low:.2f} … {correlation.high:.2f})"


@command
def run(
    say: Session,
    runs: Runs,
    by: By = None,
    seed: Seed = 0,
) -> None:
    """Do the same heads matter on other data? Correlations of the scores of two or more runs, with intervals."""
    found = [pair for sets in _sets(runs, by).values() for pair in transfer(sets, seed=seed)]
    rows = [
        (
            pair.method,
            pair.a,
            pair.b,
            _artifact(pair.pearson),
            _artifact(pair.pearson.without_noise),
            _artifact(pair.spearman),
            _artifact(pair.spearman.without_noise),
            f"{pair.spearman.p:.2g}",
            f"{pair.lowest.shared} of {pair.lowest.k} ({pair.lowest.expected * pair.lowest.k:.1f} by chance)",
        )
        for pair in found
    ]
    columns = ("method", "run", "against", "Pearson", "without noise", "Spearman", "without noise", "p of Spearman", "lowest shared")
    say.table(columns, rows)
    for pair in found:
        if pair.same_data:
            say.note(f"{pair.a} and {pair.b} were scored on the same examples, so their agreement says nothing about other data")
    say.result({"study": "transfer", "pairs": [asdict(pair) for pair in found]})
