"""RoleTable: for every head and role the sieve bias with its test, and the accuracy of the strongest key with its baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headcount.core import html as notebook
from headcount.core.errors import DataError, unknown
from headcount.core.heads import Head
from headcount.core.stats.significance import benjamini_hochberg

if TYPE_CHECKING:
    from pandas import DataFrame

TAU, ALPHA, POSITIONAL, MARGIN = 3.0, 0.05, 0.9, 0.1
"""The published thresholds: bias, level, share of tokens of a positional head, lead over the baseline of a syntactic one."""
LEAST = 8
"""With fewer sentences, spread and skewness say too little: such rows are reported, and never a label."""


@dataclass(frozen=True, slots=True)
class RoleScore:
    """One head and one role.

    `bias` with its interval, `p` of the one-sided test of bias > τ over sentences, mended for skewness, `q` corrected over heads and roles,
    `p_permutation` of the sign-flip test, `p_t` of the plain t-test; `maximum` is what attention could reach at most, `attainable` whether that is
    above τ, `normalised` is (bias − 1)/(maximum − 1), `effect` is (bias − τ)/its standard deviation over sentences. `accuracy` is the share of tokens
    whose strongest key is in the sieve, against the `baseline` of the best fixed offset and the `chance` of a random key. `has_role` is the test's
    verdict, `by_argmax` the definition of 2019, `note` why there can be no label, if so.
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
    p_permutation: float
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


@dataclass(frozen=True, slots=True)
class BestHead:
    """The head that finds a role most often, chosen on `n_choosing` sentences and measured on `n_sentences` others with `n_tokens` tokens.

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
    """All heads × all roles that apply to them; `untested` names roles without enough text, `refused` counts sentences left out, by reason.

    `data` is the fingerprint of tokens, annotations and translations; `best_heads` has the best head of each role that both halves of the text show.
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

    def __iter__(self) -> Iterator[RoleScore]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def roles(self) -> list[str]:
        """Every role that was tested, in order."""
        return list(dict.fromkeys(row.role for row in self.rows))

    def of(self, head: str | Head) -> list[RoleScore]:
        """The rows of one head, strongest first."""
        wanted = Head.parse(head)
        return sorted((row for row in self.rows if row.head == wanted), key=lambda row: -row.bias)

    def labels(self) -> dict[Head, list[str]]:
        """The roles that each head has, strongest first; empty for heads without any."""
        found: dict[Head, list[str]] = {head: [] for head in self.heads}
        for row in sorted(self.rows, key=lambda row: -row.normalised):
            if row.has_role:
                found[row.head].append(row.role)
        return found

    def best(self, role: str) -> BestHead:
        """The head that finds a role most often: chosen on one half of the sentences, its accuracy that of the other."""
        if role not in (known := self.roles()):
            raise unknown("role of this table", role, known)
        chosen = next((best for best in self.best_heads if best.role == role), None)
        if chosen is None:
            n = max(row.n_sentences for row in self.rows if row.role == role)
            raise DataError(
                f"{role}: {n} sentences show it, too few in one half to choose a head on and in the other to measure it; give more text"
            )
        return chosen

    def strongest(self, role: str) -> RoleScore:
        """The row of the largest bias for a role, over all sentences."""
        if role not in (known := self.roles()):
            raise unknown("role of this table", role, known)
        return max((row for row in self.rows if row.role == role), key=lambda row: row.bias)

    def multifunctional(self) -> list[Head]:
        """Heads with two roles or more."""
        return [head for head, roles in self.labels().items() if len(roles) > 1]

    def disagreements(self) -> list[RoleScore]:
        """Where the test and the definition of 2019 differ."""
        return [row for row in self.rows if row.has_role != row.by_argmax]

    def colocation(self) -> list[Colocation]:
        """For every pair of roles, how many heads have both, and how many would by chance; p is hypergeometric, one-sided, BH-corrected."""
        return colocation(self)

    def share(self) -> dict[str, dict[str, float]]:
        """The share of heads that have each role, by block address."""
        blocks: dict[str, list[Head]] = {}
        for head in self.heads:
            blocks.setdefault(str(head).rpartition("H")[0], []).append(head)
        having = self._having()
        return {role: {name: len(having[role].intersection(heads)) / len(heads) for name, heads in blocks.items()} for role in having}

    def _repr_html_(self) -> str:
        """The heads that have a role, for notebooks."""
        rows = [(head, ", ".join(found)) for head, found in self.labels().items() if found]
        caption = (
            f"{len(rows)} of {len(self.heads)} heads have one of {len(self.roles())} roles (bias above {self.tau:g}, q ≤ {self.alpha:g})"
        )
        return notebook.table(("head", "roles"), rows, caption)

    def _having(self) -> dict[str, set[Head]]:
        found: dict[str, set[Head]] = {role: set() for role in self.roles()}
        for row in self.rows:
            if row.has_role:
                found[row.role].add(row.head)
        return found

    def to_pandas(self) -> DataFrame:
        """A table with one row per head and role."""
        import pandas

        names = RoleScore.__dataclass_fields__
        return pandas.DataFrame(
            [{n: str(row.head) if n == "head" else getattr(row, n) for n in names} for row in self.rows], columns=list(names)
        )


@dataclass(frozen=True, slots=True)
class Colocation:
    """Heads that have both of two roles, against what chance would give."""

    a: str
    b: str
    both: int
    only_a: int
    only_b: int
    expected: float
    p: float
    q: float


def colocation(table: RoleTable) -> list[Colocation]:
    """Every pair of roles that some head has."""
    from scipy.stats import hypergeom

    having = {role: heads for role, heads in table._having().items() if heads}
    tested = {role: {row.head for row in table.rows if row.role == role} for role in having}
    found = []
    names = list(having)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            common = tested[a] & tested[b]
            in_a, in_b = having[a] & common, having[b] & common
            if common:
                both = len(in_a & in_b)
                p = float(hypergeom.sf(both - 1, len(common), len(in_a), len(in_b)))
                found.append(
                    Colocation(a, b, both, len(in_a) - both, len(in_b) - both, len(in_a) * len(in_b) / len(common), min(p, 1.0), 1.0)
                )
    if not found:
        return []
    q = benjamini_hochberg(np.array([row.p for row in found]))
    return [replace(row, q=float(value)) for row, value in zip(found, q, strict=True)]
