from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import numpy as np

from headcount.behaviour.bias_test import bias_above_tau_p_values
from headcount.core.definition import TAU, Definition, DefinitionInfo
from headcount.core.errors import ArtifactError
from headcount.core.options import option
from headcount.core.role_table import ALPHA, MIN_SENTENCES, RoleScore, RoleTable
from headcount.core.stats.significance import adjust_p_values

BLOCK = "block"
BLOCK_SHARE = 0.5
"""The share of the way from uniform attention to its maximum that the bias of a block head must exceed."""


@dataclass(frozen=True)
class Pande2021(Definition):
    """A head has a role if its sieve bias exceeds τ, by a one-sided test over sentences: H0 bias ≤ τ.

    By default as published: a plain t-test, not corrected over heads and roles; block heads by segment:entropy, the bias times the entropy of the
    attention, by which a uniform head of more than exp(τ) keys is a block head too. With a correction, p-values are also corrected for skewness, a
    label needs 8 sentences, and a block head is tested against H0 (bias − 1) / (maximum − 1) ≤ 1/2, since a text of a pair is too long a part of it
    for a bias of 3. Pande et al. 2021.
    """

    _: KW_ONLY
    tau: float = option(TAU, "The bias that a head must exceed", minimum=0)
    alpha: float = option(ALPHA, "The level of the test, after correction", above=0, below=1)
    correct: Literal["none", "bh", "bonferroni"] = option(
        "none", "How p-values are corrected over heads and roles: bh is Benjamini–Hochberg"
    )
    info = DefinitionInfo(
        source="Pande et al. 2021",
        families={"local": ("local",), "syntactic": ("syntax",), BLOCK: ("segment",), "delimiter": ("delimiter", "sink")},
    )

    @property
    def tested_bias(self) -> float:
        """The bias that a head must exceed, which p-values are tested against."""
        return self.tau

    @property
    def follows_published_rule(self) -> bool:
        """Whether the rule is the published one."""
        return self.correct == "none"

    @property
    def further_roles(self) -> tuple[str, ...]:
        """The published form of block heads, where it makes labels."""
        return ("segment:entropy",) if self.follows_published_rule else ()

    def relabel(self, table: RoleTable) -> RoleTable:
        """Returns the table with p-values, effects and labels by this rule; the permutation test stays where it tested the same bias.

        Raises:
            ArtifactError: the table has no skewness of the biases, as tables of version 0.1.
        """
        if any(row.skewness is None for row in table.rows):
            raise ArtifactError("these roles were measured by an older version, without the skewness of the biases; measure them again")
        rows = self.label_rows(table.rows, permutation_tested_bias=table.tau)
        return replace(table, rows=rows, tau=self.tau, alpha=self.alpha, definition=str(self))

    def label_rows(self, rows: Sequence[RoleScore], *, permutation_tested_bias: float) -> tuple[RoleScore, ...]:
        """Returns rows with p-values, effects and labels by this rule; their permutation tests were of the bias `permutation_tested_bias`."""
        bias, stderr, n, skewness = (np.array([getattr(row, name) for row in rows], dtype=float) for name in _NUMBERS)
        tau = np.array([self.bias_threshold(row) for row in rows])
        p_values = bias_above_tau_p_values(bias, stderr, n, skewness, tau)
        p, p_t = p_values.skewness_corrected, p_values.plain_t
        notes = [self._label_obstacle(row, needed) for row, needed in zip(rows, tau.tolist(), strict=True)]
        can_be_label = np.array([not note for note in notes], dtype=bool)
        q = np.ones_like(p)
        if can_be_label.any():
            q[can_be_label] = adjust_p_values((p_t if self.follows_published_rule else p)[can_be_label], self.correct)
        deviation = stderr * np.sqrt(n)
        effect = np.divide(bias - tau, deviation, out=np.zeros_like(bias), where=deviation > 0)
        has_role = can_be_label & (q <= self.alpha) & (bias > tau)
        return tuple(
            replace(
                row,
                p=float(p[i]),
                p_t=float(p_t[i]),
                q=float(q[i]),
                effect=float(effect[i]),
                p_permutation=row.p_permutation if tau[i] == permutation_tested_bias else None,
                has_role=bool(has_role[i]),
                attainable=bool(row.maximum > tau[i]),
                note=notes[i],
            )
            for i, row in enumerate(rows)
        )

    def bias_threshold(self, row: RoleScore) -> float:
        """Returns the bias that a head must exceed for a role."""
        if self.follows_published_rule or row.is_legacy or self.family_of(row.role) != BLOCK:
            return self.tau
        return row.uniform + BLOCK_SHARE * (row.maximum - row.uniform)

    def _label_obstacle(self, row: RoleScore, bias_threshold: float) -> str:
        """Returns why a head can have no label for a role, whatever its bias; empty if it can."""
        if row.is_legacy and not self.follows_published_rule:
            return "legacy: reported, never a label"
        if row.n_sentences < MIN_SENTENCES and not self.follows_published_rule:
            return f"{row.n_sentences} sentences; a label needs {MIN_SENTENCES}"
        return (
            ""
            if row.maximum > bias_threshold
            else f"attention reaches {row.maximum:.3g} at most; a label needs more than {bias_threshold:g}"
        )


_NUMBERS = ("bias", "stderr", "n_sentences", "skewness")
