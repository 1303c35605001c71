"""The roles of the heads of pruned models, measured again on each of them, and what became of each family of roles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import NamedTuple

from headcount.behaviour.base import Corpus
from headcount.behaviour.roles import fingerprint_data, measure_roles
from headcount.behaviour.spec import RoleSpec, parse_roles
from headcount.core.definition import Definition
from headcount.core.heads import Head
from headcount.core.role_table import RoleTable
from headcount.data.stream import Progress
from headcount.pruning.spec import PruneSpec
from headcount.runs.artifacts import ArtifactKey
from headcount.runs.results import method_label
from headcount.workflows.prune import Pruning

KIND = "roles of a pruned model"
SEVERAL, NO_ROLE = "several families", "no role"


@dataclass(frozen=True, slots=True)
class FamilyTest:
    """A test of all roles of the families of a definition on one text."""

    corpus: Corpus
    definition: Definition
    spec: RoleSpec

    @classmethod
    def by_definition(cls, corpus: Corpus, definition: str, *, seed: int, batch_size: int | None) -> FamilyTest:
        """Returns the test of a definition.

        Raises:
            UnknownName: no definition of that name is registered.
        """
        rule = Definition.parse(definition)
        return cls(corpus, rule, RoleSpec(parse_roles(rule.roles_of_families), batch_size=batch_size, seed=seed, swaps=0))

    def key_of_roles(self, pruning: Pruning, model_name: str, model_digest: str) -> ArtifactKey:
        """Returns the key of the roles of a pruned model, by the name and digest of its artifact."""
        data = fingerprint_data(pruning.model, self.corpus, self.spec, pruning.heads)
        return ArtifactKey(KIND, model_name, {**pruning.base_key, "pruned": model_digest, **self.spec.to_dict(), "text": data})


@dataclass(frozen=True, slots=True)
class FamilyCounts:
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
    def n_in_pruned_model(self) -> float:
        """The heads of the family in the pruned model."""
        return self.kept + self.gained

    def flatten(self) -> dict[str, object]:
        """Returns the row as plain data, under the names that tables of comparisons have."""
        request = {"method": self.method, "keep": self.n_kept, "seeds": self.n_seeds, "family": self.family}
        return {**request, "dense": self.n_dense, "removed": self.removed, "kept": self.kept, "lost": self.lost, "gained": self.gained}


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
class RemainingFamilies:
    """The roles of the dense model, the number of heads that roles are counted of, and the roles of every pruned model."""

    dense: RoleTable
    n_heads: int
    groups: tuple[str, ...]
    dense_counts: Mapping[str, float]
    levels: list[FamilyCounts]
    changes: list[FamilyChange]
    heads: list[RemainingHead]


@dataclass(frozen=True, slots=True)
class PrunedRoles:
    """The families of every counted head of one pruned model, and its roles."""

    seed: int
    families: Mapping[Head, frozenset[str]]
    labels: Mapping[Head, Sequence[str]]


def measure_dense_roles(pruning: Pruning, test: FamilyTest, *, progress: Progress | None = None) -> RoleTable:
    """Returns the roles of the dense model, from the run if they are finished there. They do not become the roles that the run shows."""
    measured = pruning.run.find_or_compute(
        test.key_of_roles(pruning, "dense model", ""),
        lambda: (measure_roles(pruning.model, test.corpus, test.spec, progress=progress).to_dict(), {}),
        provenance=pruning.provenance,
    )
    return RoleTable.from_dict(measured.content)


def measure_remaining_roles(
    pruning: Pruning,
    specs: Sequence[PruneSpec],
    test: FamilyTest,
    dense: RoleTable,
    *,
    attention_kinds: Sequence[str] = (),
    progress: Progress | None = None,
) -> RemainingFamilies:
    """Makes the models of all requests, and tests the roles of the heads of each of them on the same text.

    Args:
        pruning: The dense model, its task and the run, which keeps models and roles.
        specs: The requests.
        test: The text, the roles that are tested on it, and the definition of their families.
        dense: The roles of the dense model on the same text.
        attention_kinds: Kinds of attention whose heads are counted; all, if none are named.
        progress: Called with the number of finished models, and of all.
    """
    definition = test.definition
    labelled = dense.relabel(definition)
    counted = [head for block in pruning.heads.blocks if not attention_kinds or block.kind in attention_kinds for head in block.heads]
    by_level: dict[tuple[str, int], list[PrunedRoles]] = {}
    for number, spec in enumerate(specs, 1):
        method, table = _find_or_test_roles_of_pruned(pruning, spec, test)
        relabelled = table.relabel(definition)
        families, labels = families_by_head(relabelled, counted), relabelled.labels()
        by_level.setdefault((method, len(families)), []).append(PrunedRoles(spec.seed, families, labels))
        if progress is not None:
            progress(number, len(specs))
    dense_families = families_by_head(labelled, counted)
    tested = {definition.family_of(row.role) for row in labelled.rows}
    names = [family for family in definition.info.families if family in tested]
    return RemainingFamilies(
        labelled,
        len(counted),
        (*names, SEVERAL, NO_ROLE),
        mean_head_counts_by_family_group([dense_families], names),
        [
            FamilyCounts(method, n_kept, len(models), mean_head_counts_by_family_group([model.families for model in models], names))
            for (method, n_kept), models in by_level.items()
        ],
        [
            compare_family(method, n_kept, family, dense_families, [model.families for model in models])
            for (method, n_kept), models in by_level.items()
            for family in names
        ],
        [
            RemainingHead(method, n_kept, model.seed, str(head), ", ".join(labelled.labels()[head]), ", ".join(model.labels[head]))
            for (method, n_kept), models in by_level.items()
            for model in models
            for head in model.families
        ],
    )


class LabelledRoles(NamedTuple):
    """The label of the method that pruned a model, without its size, and the roles of that model."""

    method: str
    roles: RoleTable


def _find_or_test_roles_of_pruned(pruning: Pruning, spec: PruneSpec, test: FamilyTest) -> LabelledRoles:
    """Returns the roles of the model of a request, from the run if they are finished there."""
    pruned_key = pruning.key(spec)
    key = test.key_of_roles(pruning, pruned_key.name, pruned_key.digest)
    artifact, pruned = pruning.run.find(key), pruning.run.find(pruned_key)
    if artifact is None or pruned is None:
        pruned, model = pruning.load_or_make_model(spec)
        device = next(pruning.model.parameters()).device
        table = measure_roles(model.to(device).eval(), test.corpus, test.spec)
        artifact = pruning.run.commit(key, table.to_dict(), provenance=pruning.provenance)
    pruning.run.register_results(pruned)
    return LabelledRoles(method_label(pruned), RoleTable.from_dict(artifact.content))


def families_by_head(table: RoleTable, counted_heads: Iterable[Head]) -> dict[Head, frozenset[str]]:
    """Returns the families of every head of a table that is counted, by its own definition."""
    definition, labels = Definition.parse(table.definition), table.labels()
    return {head: frozenset(definition.families_of(labels[head])) for head in counted_heads if head in labels}


def mean_head_counts_by_family_group(models: Sequence[Mapping[Head, frozenset[str]]], family_names: Sequence[str]) -> dict[str, float]:
    """Returns how many heads belong to each family alone, to several and to none, as means over models."""

    def family_group_of_head(families: frozenset[str]) -> str:
        return SEVERAL if len(families) > 1 else next(iter(families), NO_ROLE)

    groups = [[family_group_of_head(families) for families in model.values()] for model in models]
    return {name: mean(of_model.count(name) for of_model in groups) for name in (*family_names, SEVERAL, NO_ROLE)}


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
