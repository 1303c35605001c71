"""The agreement of the scores of two or more runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from headcount.core.errors import ArtifactError
from headcount.core.scores import SCALED, Scores
from headcount.core.stats.agreement import Correlated, agreement, correlate
from headcount.core.stats.ranks import SetOverlap
from headcount.importance.rankings import count_a_quarter_of_units, samples_higher_is_keep
from headcount.runs.scores import all_scores, check_scores_of_same_heads
from headcount.runs.store import Run
from headcount.studies._base import StudyContext


@dataclass(frozen=True, slots=True)
class ScoreAgreement:
    """The agreement of the scores of two runs by one importance."""

    method: str
    a: str
    b: str
    pearson: Correlated
    spearman: Correlated
    lowest: SetOverlap
    same_data: bool


def correlate_scores(scores_by_run: Mapping[str, Scores], *, seed: int = 0) -> list[ScoreAgreement]:
    """Returns every pair of the scores of one importance, by the names of their runs.

    Raises:
        ArtifactError: two runs normalised their scores differently.
    """
    check_scores_of_same_heads(list(scores_by_run.values()))
    pairs = []
    for (name_a, a), (name_b, b) in combinations(scores_by_run.items(), 2):
        if a.normalise != b.normalise:
            raise ArtifactError(
                f"{a.method} is {SCALED[a.normalise]} in {name_a} and {SCALED[b.normalise]} in {name_b}; "
                "score both runs with the same normalisation"
            )
        samples_a, samples_b = samples_higher_is_keep(a), samples_higher_is_keep(b)
        paired = a.data == b.data and samples_a.n_groups == samples_b.n_groups
        ranks = agreement(
            samples_a, samples_b, count_a_quarter_of_units(a), positions_of_units=a.head_indices_of_units(), seed=seed, paired=paired
        )
        pearson = correlate(samples_a, samples_b, seed=seed, by="pearson", paired=paired)
        pairs.append(ScoreAgreement(a.method, name_a, name_b, pearson, ranks.spearman, ranks.lowest, bool(a.data) and a.data == b.data))
    return pairs


def read_scores_by_importance_and_run(
    context: StudyContext, run_folders: Sequence[str], importance_name: str | None
) -> dict[str, dict[str, Scores]]:
    """Returns for every importance that all runs have its scores by run; without `importance_name`, only those that depend on examples.

    Raises:
        ArtifactError: there are fewer than two runs, they have no importance in common, or its scores have no samples.
    """
    scores_by_run = {folder: all_scores(Run.open(folder)) for folder in run_folders}
    if len(scores_by_run) < 2:
        raise ArtifactError("transfer compares runs: name two or more different run folders")
    shared = set.intersection(*(set(scores) for scores in scores_by_run.values()))
    if importance_name is None and not shared:
        known = ", ".join(f"{name} has {list(scores)}" for name, scores in scores_by_run.items())
        raise ArtifactError(f"these runs have no method in common: {known}")
    if importance_name is not None and importance_name not in shared:
        lacking = next(name for name, scores in scores_by_run.items() if importance_name not in scores)
        raise ArtifactError(f"{lacking} has no scores by '{importance_name}'; it has {', '.join(scores_by_run[lacking]) or 'none'}")
    if context.run is not None:
        context.run.stage_records_of_same_model(Run.open(run_folders[0]), command=context.command, seed=context.seed)
    methods = [importance_name] if importance_name is not None else sorted(shared)
    by_method = {method: {name: scores[method] for name, scores in scores_by_run.items()} for method in methods}
    sampled = {
        method: by_run for method, by_run in by_method.items() if all(scores.samples and scores.samples.n > 1 for scores in by_run.values())
    }
    if not sampled:
        raise ArtifactError(
            f"{', '.join(by_method)} has no samples of 2 examples or more in each run, so the uncertainty of an agreement is unknown; "
            "score the runs by a method that reads data, such as gradient"
        )
    return sampled
