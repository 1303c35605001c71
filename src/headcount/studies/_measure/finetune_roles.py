"""The sieve biases of the heads of two models on the same sentences, compared in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headcount.behaviour.base import Corpus
from headcount.behaviour.roles import biases_by_sentence, measure_roles
from headcount.behaviour.spec import RoleSpec, parse_roles
from headcount.core.definition import DEFAULT_DEFINITION, Definition
from headcount.core.errors import ArtifactError, DataError
from headcount.core.heads import Head
from headcount.core.stats.chance import rank_correlation
from headcount.core.stats.corrected_rows import add_q_values
from headcount.core.stats.means import mean_interval
from headcount.data.task import Task
from headcount.studies._base import LoadedModel, StudyContext
from headcount.studies._measure.role_tables import open_study_corpus

ALL_ROLES = "all roles"


@dataclass(frozen=True, slots=True)
class HeadRoleChange:
    """One head and role: its bias in both models, their paired difference with interval, p and q, and whether it had and has the role."""

    head: Head
    role: str
    n_sentences: int
    before: float
    after: float
    difference: float
    low: float | None
    high: float | None
    p: float | None
    had: bool
    has: bool
    q: float | None = None


def compare_roles_before_and_after_tuning(
    original: LoadedModel,
    tuned: LoadedModel,
    corpus: Corpus,
    *,
    only: Sequence[str] = (),
    definition: str = DEFAULT_DEFINITION,
    seed: int = 0,
    batch_size: int | None = None,
) -> list[HeadRoleChange]:
    """Returns every head and role that both models were tested for, with the paired difference.

    Raises:
        ArtifactError: the models have different heads.
    """
    spec = RoleSpec(parse_roles(only or None), Definition.parse(definition), seed=seed, batch_size=batch_size, swaps=0)
    before, after = measure_roles(original.model, corpus, spec), measure_roles(tuned.model, corpus, spec)
    if before.heads != after.heads:
        raise ArtifactError(
            f"the models have different heads ({len(before.heads)} and {len(after.heads)}); compare a model with its fine-tuned self"
        )
    biases_before, biases_after = (biases_by_sentence(either.model, corpus, spec, either.heads) for either in (original, tuned))
    later_rows = {(row.head, row.role): row for row in after}
    changes = []
    for row in before:
        key = row.head, row.role
        if key not in later_rows or key not in biases_before:
            continue
        gap, later = biases_after[key] - biases_before[key], later_rows[key]
        shift = mean_interval(gap)
        test = (shift.difference, shift.low, shift.high, shift.p)
        changes.append(HeadRoleChange(*key, len(gap), row.bias, later.bias, *test, row.has_role, later.has_role))
    return add_q_values(changes)


@dataclass(frozen=True, slots=True)
class Trend:
    """The rank correlation of the mean size of a head's changes with its layer, for the roles of one family or all; p by permuting heads."""

    family: str
    stack: str
    n_heads: int
    rho: float
    p: float
    q: float | None = None


def correlate_role_changes_with_depth(changes: Sequence[HeadRoleChange], definition: str, *, seed: int = 0) -> list[Trend]:
    """Returns whether changes grow with the layer, for every family of the definition that has changes, and for all roles, by stack."""
    rule, trends = Definition.parse(definition), []
    families = rule.families_of({change.role for change in changes})
    for stack in dict.fromkeys(change.head.stack for change in changes):
        for family in (*families, ALL_ROLES):
            sizes: dict[Head, list[float]] = {}
            for change in changes:
                if change.head.stack == stack and family in (ALL_ROLES, rule.family_of(change.role)):
                    sizes.setdefault(change.head, []).append(abs(change.difference))
            if len({head.layer for head in sizes}) >= 2:
                layers, means = np.array([head.layer for head in sizes]), np.array([np.mean(values) for values in sizes.values()])
                trends.append(Trend(family, stack, len(sizes), *rank_correlation(layers, means, seed=seed)))
    return add_q_values(trends)


def _open_task_for_tuned_or_original(context: StudyContext, original: LoadedModel, tuned: LoadedModel) -> Task:
    """Opens the task for the model that has the head it needs: as a rule the fine-tuned one."""
    try:
        return context.sources.open_task(replace(tuned, folder=original.folder))
    except DataError as error:
        try:
            return context.sources.open_task(original)
        except DataError:
            raise error from None


def measure_role_changes(
    context: StudyContext, tuned_model_name: str, only: Sequence[str], definition: str, max_sentences: int | None = None
) -> list[HeadRoleChange]:
    """Returns the changes of roles from the model of a study to its fine-tuned self, on the text of the caller or of the task.

    Raises:
        DataError: there is no text to measure roles on.
    """
    Definition.parse(definition)  # an unknown one is an error before any work
    before = context.loaded
    after = context.sources.load_model(tuned_model_name, class_from_config=True)
    task = _open_task_for_tuned_or_original(context, before, after) if context.sources.task_name else None
    corpus = open_study_corpus(context, before, task, max_sentences)
    return compare_roles_before_and_after_tuning(
        before, after, corpus, only=only, definition=definition, seed=context.seed, batch_size=context.batch_size
    )
