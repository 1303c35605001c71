"""RoleTable: for every head and role the sieve bias with its test, and the accuracy of the strongest key with its baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from headcount.core import html
from headcount.core.definition import DEFAULT_DEFINITION, TAU, Definition
from headcount.core.errors import ArtifactError, DataError, unknown_name_error
from headcount.core.heads import Head
from headcount.core.stats.significance import benjamini_hochberg

if TYPE_CHECKING:
    from pandas import DataFrame

ALPHA, POSITIONAL_ACCURACY, MARGIN = 0.05, 0.9, 0.1
"""The published thresholds: level, share of tokens of a positional head, lead over the baseline of a syntactic one."""
MIN_SENTENCES = 8
"""With fewer sentences, standard error and skewness are too uncertain: such rows are reported, and never a label."""

COMPARED_DEFINITIONS = (DEFAULT_DEFINITION, "pande2021(correct=bh)", "voita2019")
MIN_LABELS = 20
"""With fewer labels, no share of false discoveries is estimated."""


@dataclass(frozen=True, slots=True)
class RoleScore:
    """One head and one role.

    Attributes:
        head: The head.
        role: The name of the role.
        n_sentences: Sentences with a token that can show the role.
        n_tokens: These tokens.
        bias: The sieve bias, the mean over sentences.
        stderr: Its standard error.
        low, high: Its interval.
        p: The p-value of the one-sided test of bias > τ over sentences, corrected for skewness.
        q: The p-value corrected over heads and roles.
        p_permutation: The p-value of the sign-flip test; None if it was not done for this threshold.
        effect: (bias − τ) / standard deviation over sentences.
        maximum: The largest bias that attention could reach.
        normalised: (bias − 1) / (maximum − 1).
        accuracy: The share of tokens whose strongest key is in the sieve.
        accuracy_low, accuracy_high: Its interval.
        baseline: The accuracy of the best fixed offset.
        baseline_offset: That offset.
        has_role: The verdict of the definition of the table.
        by_argmax: The verdict of the definition of 2019, by accuracy.
        p_t: The p-value of the plain t-test.
        chance: The accuracy of a random key.
        attainable: Whether the maximum is above τ.
        note: Why the role cannot be a label here; empty if it can.
        uniform: The bias of uniform attention: 1, or ln N for a legacy role.
        skewness: That of the biases of the sentences; None in tables of version 0.1.
        is_legacy: Whether the bias is multiplied by the entropy of the attention.
        is_content: Whether the role is tested against the head's distance twin; None in tables of older versions.
        compared_bias: The sieve bias at the offsets that are compared with the twin: those with enough pairs outside the sieve.
        twin_bias: That of the head's distance twin.
        excess: The excess mass: the head's attention to the sieve minus that of its twin, the mean over sentences. It and the numbers around it are
            None where no twin was fitted or too few pairs remain.
        excess_stderr: Its standard error, by jackknife over folds.
        excess_low, excess_high: Its interval.
        n_folds: The folds of sentences that show the role.
        n_pairs, n_kept_pairs: The pairs of tokens in the sieve, and how many of them are at offsets that are compared.
    """

    head: Head
    role: str
    n_sentences: int
    n_tokens: int
    bias: float
    stderr: float
    low: float
    high: float
    p: float
    q: float
    p_permutation: float | None
    effect: float
    maximum: float
    normalised: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    baseline: float
    baseline_offset: int
    has_role: bool
    by_argmax: bool
    p_t: float | None
    chance: float
    attainable: bool
    note: str
    uniform: float = 1.0
    skewness: float | None = None
    is_legacy: bool = False
    is_content: bool | None = None
    compared_bias: float | None = None
    twin_bias: float | None = None
    excess: float | None = None
    excess_stderr: float | None = None
    excess_low: float | None = None
    excess_high: float | None = None
    n_folds: int = 0
    n_pairs: int = 0
    n_kept_pairs: int = 0

    @property
    def explained_by_distance(self) -> float | None:
        """The share of the bias above uniform attention that the head's distance twin has too; None without a twin or such a bias."""
        if self.compared_bias is None or self.twin_bias is None or self.compared_bias <= 1:
            return None
        return (self.twin_bias - 1) / (self.compared_bias - 1)


@dataclass(frozen=True, slots=True)
class DistanceCurve:
    """The mean attention of a head to the sieve of a role by offset, and that of its distance twin, fitted outside the sieve."""

    head: Head
    role: str
    offsets: tuple[int, ...]
    attention: tuple[float, ...]
    twin: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SwappedLabels:
    """How many labels beyond distance there are where sentences get the annotations of others of equal length.

    Attributes:
        n_swaps: How often annotations were swapped at random.
        n_sentences: The sentences that have a partner of equal length.
        labels: The labels of these sentences by their own annotations.
        swapped_labels: Those by the annotations of other sentences, the mean over swaps.
        excess, alpha: The minimum excess mass and the level of these labels.
    """

    n_swaps: int
    n_sentences: int
    labels: int
    swapped_labels: float
    excess: float
    alpha: float

    @property
    def ratio(self) -> float | None:
        """The estimated share of false discoveries: labels under swaps / labels; None for fewer than 20 labels."""
        return self.swapped_labels / self.labels if self.labels >= MIN_LABELS else None


@dataclass(frozen=True, slots=True)
class BestHead:
    """The most accurate head of a role, chosen on `n_choosing` sentences and measured on `n_sentences` others with `n_tokens` tokens.

    `accuracy` with its interval, the `baseline` of the fixed offset that was best where the head was chosen, `p` of accuracy = baseline by the test
    of the interval, and the `chance` of a random key: all of the sentences that took no part in the choice.
    """

    role: str
    head: Head
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    baseline: float
    baseline_offset: int
    p: float
    chance: float
    n_sentences: int
    n_tokens: int
    n_choosing: int


@dataclass(frozen=True, slots=True)
class RoleTable:
    """All heads × all roles that apply to them.

    Attributes:
        rows: One for each head and role.
        heads: All heads of the model.
        tau: The bias that a head must exceed.
        alpha: The level of the test.
        untested: Why roles were not tested, by name.
        refused: How many sentences were left out, by reason.
        data: The fingerprint of tokens, annotations and translations.
        conditions: What else the numbers depend on, such as the dtype.
        best_heads: The best head of each role that occurs in both halves of the text.
        definition: The rule of the labels.
        nested: Pairs of roles of which the sieve of the first lies in that of the second everywhere in the text.
        curves: The attention by offset of every head to the sieve that it exceeds its twin on most.
        swapped: The labels under swapped annotations, if they were counted.
    """

    rows: tuple[RoleScore, ...]
    heads: tuple[Head, ...]
    tau: float = TAU
    alpha: float = ALPHA
    untested: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    data: str = ""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    best_heads: tuple[BestHead, ...] = ()
    definition: str = DEFAULT_DEFINITION
    nested: tuple[tuple[str, str], ...] = ()
    curves: tuple[DistanceCurve, ...] = ()
    swapped: SwappedLabels | None = None

    def __iter__(self) -> Iterator[RoleScore]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def roles(self) -> list[str]:
        """Returns every role that was tested, in order."""
        return list(dict.fromkeys(row.role for row in self.rows))

    def of(self, head: str | Head) -> list[RoleScore]:
        """Returns the rows of one head, largest bias first."""
        address = Head.parse(head)
        return sorted((row for row in self.rows if row.head == address), key=lambda row: -row.bias)

    def labels(self) -> dict[Head, list[str]]:
        """Returns the roles that each head has, nearest to their maximum first; empty for heads without any."""
        labels: dict[Head, list[str]] = {head: [] for head in self.heads}
        for row in sorted(self.rows, key=lambda row: -row.normalised):
            if row.has_role:
                labels[row.head].append(row.role)
        return labels

    def relabel(self, definition: str | Definition) -> RoleTable:
        """Returns the table with labels by another definition, such as `pande2021(tau=2)`, from the same measurements.

        Raises:
            ArtifactError: the table is of version 0.1, and the definition needs more than it holds.
        """
        return Definition.parse(definition).relabel(self)

    def best(self, role: str) -> BestHead:
        """Returns the most accurate head of a role: chosen on one half of the sentences, with its accuracy on the other."""
        if role not in (known := self.roles()):
            raise unknown_name_error("role of this table", role, known)
        chosen = next((best for best in self.best_heads if best.role == role), None)
        if chosen is None:
            n = max(row.n_sentences for row in self.rows if row.role == role)
            raise DataError(
                f"{role}: {n} sentences show it, too few in one half to choose a head and in the other to measure it "
                "(equal sentences are in the same half); use more text"
            )
        return chosen

    def strongest(self, role: str) -> RoleScore:
        """Returns the row of the largest bias for a role, over all sentences."""
        if role not in (known := self.roles()):
            raise unknown_name_error("role of this table", role, known)
        return max((row for row in self.rows if row.role == role), key=lambda row: row.bias)

    def kinds(self, roles: Sequence[str]) -> list[str]:
        """Returns roles of different kinds: without those whose sieve lies in that of another of these roles; of identical ones the first stays."""
        nested = set(self.nested)

        def lies_in_wider_role(position: int, role: str) -> bool:
            wider = [(other, index) for index, other in enumerate(roles) if other != role and (role, other) in nested]
            return any((other, role) not in nested or place < position for other, place in wider)

        return [role for number, role in enumerate(roles) if not lies_in_wider_role(number, role)]

    def multifunctional(self) -> list[Head]:
        """Returns the heads with roles of two kinds or more."""
        return [head for head, roles in self.labels().items() if len(self.kinds(roles)) > 1]

    def disagreements(self) -> list[RoleScore]:
        """Returns the rows on which the test and the definition of 2019 differ."""
        return [row for row in self.rows if row.has_role != row.by_argmax]

    def labels_by_definition(self) -> dict[str, set[tuple[Head, str]]]:
        """Returns the heads and roles that are labels by the definition of the table and by the three known ones, from the same measurements."""
        definitions = dict.fromkeys((self.definition, *COMPARED_DEFINITIONS))
        return {name: {(row.head, row.role) for row in self.relabel(name) if row.has_role} for name in definitions}

    def colocation(self) -> list[Colocation]:
        """Returns how many heads have both roles of every pair whose sieves do not contain each other, and how many would by chance.

        p is hypergeometric, which keeps the numbers of heads with each role; it is one-sided and BH-corrected.
        """
        return _test_colocations(self)

    def share(self) -> dict[str, dict[str, float]]:
        """Returns the share of heads that have each role, by block address."""
        blocks: dict[str, list[Head]] = {}
        for head in self.heads:
            blocks.setdefault(str(head).rpartition("H")[0], []).append(head)
        by_role = self._heads_by_role()
        return {
            role: {name: len(owners.intersection(heads)) / len(heads) for name, heads in blocks.items()} for role, owners in by_role.items()
        }

    def _repr_html_(self) -> str:
        """Returns the heads that have a role as an HTML table, for notebooks."""
        rows = [(head, ", ".join(roles)) for head, roles in self.labels().items() if roles]
        caption = f"{len(rows)} of {len(self.heads)} heads have one of {len(self.roles())} roles by {self.definition}"
        return html.html_table(("head", "roles"), rows, caption)

    def _heads_by_role(self) -> dict[str, set[Head]]:
        owners: dict[str, set[Head]] = {role: set() for role in self.roles()}
        for row in self.rows:
            if row.has_role:
                owners[row.role].add(row.head)
        return owners

    def to_pandas(self) -> DataFrame:
        """Returns a data frame with one row per head and role."""
        import pandas

        return pandas.DataFrame(_rows_to_dicts(self.rows), columns=[column.name for column in fields(RoleScore)])

    def to_dict(self) -> dict[str, Any]:
        """Returns the table as plain data."""
        names = ("tau", "alpha", "definition", "data")
        mappings = ("untested", "refused", "conditions")
        return {
            **{name: getattr(self, name) for name in names},
            **{name: dict(getattr(self, name)) for name in mappings},
            "heads": [str(head) for head in self.heads],
            "rows": _rows_to_dicts(self.rows),
            "best_heads": _rows_to_dicts(self.best_heads),
            "nested": [list(pair) for pair in self.nested],
            "curves": _rows_to_dicts(self.curves),
            "swapped": None if self.swapped is None else asdict(self.swapped),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the table that `to_dict` described.

        Raises:
            ArtifactError: the data are no table of roles.
        """
        try:
            rows = tuple(RoleScore(**{**row, "head": Head.parse(row["head"])}) for row in values["rows"])
            best_heads = tuple(BestHead(**{**best, "head": Head.parse(best["head"])}) for best in values["best_heads"])
            heads = tuple(Head.parse(head) for head in values["heads"])
            lists = ("offsets", "attention", "twin")
            curves = tuple(
                DistanceCurve(Head.parse(curve["head"]), curve["role"], *(tuple(curve[name]) for name in lists))
                for curve in values.get("curves", ())
            )
            nested = tuple((inner, outer) for inner, outer in values.get("nested", ()))
            swapped = SwappedLabels(**values["swapped"]) if values.get("swapped") else None
            changed = {"rows": rows, "heads": heads, "best_heads": best_heads, "nested": nested, "curves": curves, "swapped": swapped}
            return cls(**{**values, **changed})
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"these data are no table of roles of this version ({error}); measure the roles again") from error


def _rows_to_dicts(rows: Sequence[RoleScore] | Sequence[BestHead] | Sequence[DistanceCurve]) -> list[dict[str, Any]]:
    return [{column.name: str(row.head) if column.name == "head" else getattr(row, column.name) for column in fields(row)} for row in rows]


@dataclass(frozen=True, slots=True)
class Colocation:
    """How many heads have both of two roles, and how many would by chance."""

    a: str
    b: str
    both: int
    only_a: int
    only_b: int
    expected: float
    p: float
    q: float


def _test_colocations(table: RoleTable) -> list[Colocation]:
    """Returns every pair of roles that some head has."""
    from scipy.stats import hypergeom

    owners = {role: heads for role, heads in table._heads_by_role().items() if heads}
    tested = {role: {row.head for row in table.rows if row.role == role} for role in owners}
    pairs = []
    names, nested = list(owners), set(table.nested)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            common = tested[a] & tested[b] if not {(a, b), (b, a)} & nested else set()
            in_a, in_b = owners[a] & common, owners[b] & common
            if common:
                both = len(in_a & in_b)
                p = float(hypergeom.sf(both - 1, len(common), len(in_a), len(in_b)))
                pairs.append(
                    Colocation(a, b, both, len(in_a) - both, len(in_b) - both, len(in_a) * len(in_b) / len(common), min(p, 1.0), 1.0)
                )
    if not pairs:
        return []
    q = benjamini_hochberg(np.array([pair.p for pair in pairs]))
    return [replace(pair, q=float(value)) for pair, value in zip(pairs, q, strict=True)]
