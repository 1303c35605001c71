"""The roles of the heads of pruned models, measured again on each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING

from headcount.behaviour.base import Corpus
from headcount.behaviour.roles import fingerprint_data
from headcount.behaviour.spec import RoleSpec, parse_roles
from headcount.core.definition import Definition
from headcount.core.heads import Head
from headcount.core.role_table import RoleTable
from headcount.pruning.spec import PruneSpec
from headcount.runs.artifacts import ArtifactKey
from headcount.runs.results import method_label
from headcount.studies._base import StudyContext
from headcount.studies._grid import make_pruning
from headcount.studies._measure.pruning_curve import build_requests
from headcount.studies._measure.role_tables import open_text
from headcount.studies._results import describe_study_run
from headcount.studies._tuning import note_training
from headcount.workflows.prune import Pruning
from headcount.workflows.roles import roles_into

if TYPE_CHECKING:
    from headcount.studies.remaining_roles import RemainingRoles as Study

KIND = "roles of a pruned model"
SEVERAL, NO_ROLE = "several families", "no role"


@dataclass(frozen=True, slots=True)
class Level:
    """One method and number of heads: how many heads have roles of one family alone, of several, or of none, as means over seeds."""

    method: str
    n_kept: int
    n_seeds: int
    counts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class FamilyChange:
    """One method, number of heads and family: the heads of the dense model's family that went, kept or lost it, and those that gained it."""

    method: str
    n_kept: int
    n_seeds: int
    family: str
    n_dense: int
    removed: float
    kept: float
    lost: float
    gained: float

    @property
    def n_pruned(self) -> float:
        """The heads of the family in the pruned model."""
        return self.kept + self.gained


@dataclass(frozen=True, slots=True)
class RemainingHead:
    """A head that remains, with the roles of its family it has in the dense and in the pruned model."""

    method: str
    n_kept: int
    seed: int
    head: str
    dense_roles: str
    roles: str


@dataclass(frozen=True, slots=True)
class RemainingRoles:
    """The roles of the dense model, the number of heads that roles are counted of, and the roles of every pruned model."""

    dense: RoleTable
    n_heads: int
    groups: tuple[str, ...]
    dense_counts: Mapping[str, float]
    levels: list[Level]
    changes: list[FamilyChange]
    heads: list[RemainingHead]


@dataclass(frozen=True, slots=True)
class PrunedRoles:
    """The families of every counted head of one pruned model, and its roles."""

    seed: int
    families: Mapping[Head, frozenset[str]]
    labels: Mapping[Head, Sequence[str]]


def measure_remaining(study: Study, context: StudyContext) -> RemainingRoles:
    """Makes all models of a study, and tests the roles of the heads of each of them on the same text.

    Raises:
        DataError: there is no text to measure roles on.
    """
    specs, loaded = build_requests(study, context), context.loaded
    describe_study_run(context, loaded, {"study": study.name, "methods": list(study.methods), "definition": study.definition})
    corpus = open_text(context, loaded, context.task, study.sentences)
    definition = Definition.parse(study.definition)
    names = [name for family in definition.info.families.values() for name in family]
    role_spec = RoleSpec(parse_roles(names), batch_size=context.batch_size, seed=context.seed)
    with context.progress("testing roles") as advance:
        dense = roles_into(context.run, loaded.model, corpus, role_spec, progress=advance).relabel(definition)
    pruning = make_pruning(context)
    note_training(context, pruning, specs)
    counted = [head for block in loaded.heads.blocks if not study.kinds or block.kind in study.kinds for head in block.heads]
    by_level: dict[tuple[str, int], list[PrunedRoles]] = {}
    with context.progress("pruned models", "models") as advance:
        for number, spec in enumerate(specs):
            method, table = _test_pruned(pruning, spec, corpus, role_spec)
            relabelled = table.relabel(definition)
            families, labels = families_by_head(relabelled, counted), relabelled.labels()
            by_level.setdefault((method, len(families)), []).append(PrunedRoles(spec.seed, families, labels))
            advance(number + 1, len(specs))
    dense_families = families_by_head(dense, counted)
    tested = {definition.family_of(row.role) for row in dense.rows}
    names = [family for family in definition.info.families if family in tested]
    return RemainingRoles(
        dense,
        len(counted),
        (*names, SEVERAL, NO_ROLE),
        count_groups([dense_families], names),
        [
            Level(method, n_kept, len(models), count_groups([model.families for model in models], names))
            for (method, n_kept), models in by_level.items()
        ],
        [
            compare_family(method, n_kept, family, dense_families, [model.families for model in models])
            for (method, n_kept), models in by_level.items()
            for family in names
        ],
        [
            RemainingHead(method, n_kept, model.seed, str(head), ", ".join(dense.labels()[head]), ", ".join(model.labels[head]))
            for (method, n_kept), models in by_level.items()
            for model in models
            for head in model.families
        ],
    )


def _test_pruned(pruning: Pruning, spec: PruneSpec, corpus: Corpus, role_spec: RoleSpec) -> tuple[str, RoleTable]:
    """Returns the label of a request without its size, and the roles of its model, from the run if they are finished there."""
    data = fingerprint_data(pruning.model, corpus, role_spec)
    pruned_key = pruning.key(spec)
    key = ArtifactKey(KIND, pruned_key.name, {**pruning.base_key, "pruned": pruned_key.digest, **role_spec.to_dict(), "text": data})
    artifact, pruned = pruning.run.find(key), pruning.run.find(pruned_key)
    if artifact is None or pruned is None:
        pruned, model = pruning.make(spec)
        device = next(pruning.model.parameters()).device
        table = roles_into(None, model.to(device).eval(), corpus, role_spec)
        artifact = pruning.run.commit(key, table.to_dict(), provenance=pruning.provenance)
    pruning.run.present(pruned)
    return method_label(pruned), RoleTable.from_dict(artifact.content)


def families_by_head(table: RoleTable, counted: Iterable[Head]) -> dict[Head, frozenset[str]]:
    """Returns the families of every head of a table that is counted, by its own definition."""
    definition, labels = Definition.parse(table.definition), table.labels()
    return {head: frozenset(definition.families_of(labels[head])) for head in counted if head in labels}


def count_groups(models: Sequence[Mapping[Head, frozenset[str]]], names: Sequence[str]) -> dict[str, float]:
    """Returns how many heads belong to each family alone, to several and to none, as means over models."""

    def group_of(families: frozenset[str]) -> str:
        return SEVERAL if len(families) > 1 else next(iter(families), NO_ROLE)

    groups = [[group_of(families) for families in model.values()] for model in models]
    return {name: mean(of_model.count(name) for of_model in groups) for name in (*names, SEVERAL, NO_ROLE)}


def compare_family(
    method: str, n_kept: int, family: str, dense: Mapping[Head, frozenset[str]], models: Sequence[Mapping[Head, frozenset[str]]]
) -> FamilyChange:
    """Returns what became of the heads of a family in pruned models, as means over these."""
    before = {head for head, families in dense.items() if family in families}
    after = [{head for head, families in model.items() if family in families} for model in models]
    return FamilyChange(
        method,
        n_kept,
        len(models),
        family,
        len(before),
        mean(len(before.difference(model)) for model in models),
        mean(len(before & members) for members in after),
        mean(len((before & set(model)) - members) for model, members in zip(models, after, strict=True)),
        mean(len(members - before) for members in after),
    )
