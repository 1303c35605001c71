"""From the sums of a pass to the comparison of every head with its distance twin: rows, curves by offset, labels under swapped annotations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headcount.behaviour.measure import RoleProbe
from headcount.behaviour.swaps import SwappedExcess
from headcount.behaviour.twin import N_FOLDS, TwinComparison
from headcount.behaviour.twin_pass import TwinPass
from headcount.behaviour.views import ViewName
from headcount.core.heads import Head
from headcount.core.role_table import ALPHA, DistanceCurve, RoleScore, SwappedLabels
from headcount.core.stats.significance import benjamini_hochberg
from headcount.core.twin_score import MIN_EXCESS, excess_interval, excess_p_values
from headcount.data.stream import Measured

REACH = 16
"""Curves show the offsets up to here."""


class TwinSums:
    """The sums of a pass for the distance twins of one view."""

    def __init__(self, probe: RoleProbe, view: ViewName) -> None:
        self.twins, self.view = probe.twins[view], view
        self.blocks = [block for block in probe.blocks_of_view(view) if block.path in self.twins.text_of_block]
        self.heads = [head for block in self.blocks for head in block.heads]
        self.sums = np.zeros((N_FOLDS, self.twins.n_attention_sums, len(self.heads)))
        self.irregular = np.zeros(len(self.blocks))

    def add_chunk(self, measured: Measured) -> None:
        """Adds the sums of a chunk."""
        for fold in range(N_FOLDS):
            part = measured.get(f"{self.view}/sums/{fold}")
            if part is not None:
                self.sums[fold] += part
        self.irregular += measured[f"{self.view}/irregular"][0]

    def compare_heads_with_twins(self) -> list[HeadComparison]:
        """Returns heads beside their twins; heads of blocks whose mask was not the expected one are left out."""
        compared = []
        for text in range(len(self.twins.texts)):
            blocks = [b for b, irregular in zip(self.blocks, self.irregular, strict=True) if not irregular]
            heads = [head for block in blocks if self.twins.text_of_block[block.path] == text for head in block.heads]
            if heads:
                columns = [self.heads.index(head) for head in heads]
                sums = self.sums if heads == self.heads else self.sums[:, :, columns]  # a copy only where masks differ
                swapped = None if self.twins.swaps is None else self.twins.excess_under_swaps(text, sums)
                compared.append(HeadComparison(self.twins, text, heads, self.twins.compare_with_twins(text, sums), swapped))
        return compared


@dataclass(frozen=True, slots=True, eq=False)
class HeadComparison:
    """Heads of blocks with the same mask beside their distance twins."""

    twins: TwinPass
    text: int
    heads: Sequence[Head]
    by_role: Sequence[TwinComparison]
    swapped: SwappedExcess | None

    def role_score_fields(self, interval_level: float) -> dict[tuple[Head, str], dict[str, Any]]:
        """Returns the fields of a RoleScore that the comparison gives, by head and role."""
        values: dict[tuple[Head, str], dict[str, Any]] = {}
        for role, compared in zip(self.twins.roles, self.by_role, strict=True):
            low, high = excess_interval(compared.excess, compared.stderr, compared.n_folds, interval_level)
            columns = {
                "compared_bias": compared.bias,
                "twin_bias": compared.twin_bias,
                "excess": compared.excess,
                "excess_stderr": compared.stderr,
                "excess_low": low,
                "excess_high": high,
            }
            counts = {"n_folds": compared.n_folds, "n_pairs": compared.n_pairs, "n_kept_pairs": compared.n_kept}
            for number, head in enumerate(self.heads):
                numbers = {name: float(column[number]) for name, column in columns.items() if np.isfinite(column[number])}
                values[head, str(role)] = {**numbers, **counts}
        return values

    def curves_of_strongest_roles(self) -> list[DistanceCurve]:
        """Returns the attention by offset of each head to the sieve that it exceeds its twin on most."""
        layout = self.twins.texts[self.text].layout
        excess = np.array([compared.excess for compared in self.by_role])
        curves = []
        for number, head in enumerate(self.heads):
            if np.isfinite(excess[:, number]).any():
                role = int(np.nanargmax(excess[:, number]))
                compared = self.by_role[role]
                classes = np.arange(
                    max(0, layout.class_of_offset_zero - REACH), min(layout.n_offset_classes, layout.class_of_offset_zero + REACH + 1)
                )
                classes = classes[np.isfinite(compared.by_class[classes, number]) & self.twins.texts[self.text].kept[role, classes]]
                columns = (
                    classes - layout.class_of_offset_zero,
                    compared.by_class[classes, number],
                    compared.twin_by_class[classes, number],
                )
                curves.append(DistanceCurve(head, str(self.twins.roles[role]), *(tuple(column.tolist()) for column in columns)))
        return curves


def add_twin_comparisons(
    rows: Sequence[RoleScore], content_role_names: set[str], comparisons: Sequence[HeadComparison], interval_level: float
) -> tuple[RoleScore, ...]:
    """Returns the rows with the comparison of heads with their twins; `content_role_names` are the labels of roles that are compared."""
    values = {name: fields for compared in comparisons for name, fields in compared.role_score_fields(interval_level).items()}
    return tuple(replace(row, is_content=row.role in content_role_names, **values.get((row.head, row.role), {})) for row in rows)


def count_labels_under_swaps(comparisons: Sequence[HeadComparison]) -> SwappedLabels | None:
    """Returns the labels beyond distance under swapped annotations; None if no sentence has a partner or no role is testable."""
    swapped = [(compared, compared.swapped) for compared in comparisons if compared.swapped is not None]
    if not swapped or not any((excess.n_sentences > 0).any() for _, excess in swapped):
        return None
    p = []
    for compared, excess in swapped:
        is_testable = np.array([np.isfinite(role.excess).all() for role in compared.by_role])
        of_heads = excess_p_values(excess.excess, excess.stderr, excess.n_folds[:, :, None], MIN_EXCESS)
        p.append(of_heads[:, is_testable].reshape(len(of_heads), -1))
    if not sum(of_heads.shape[1] for of_heads in p):
        return None
    labels = [int((benjamini_hochberg(of_swap) <= ALPHA).sum()) for of_swap in np.concatenate(p, axis=1)]
    n_sentences = max(int((compared.twins.swaps.partner[0] >= 0).sum()) for compared, _ in swapped if compared.twins.swaps is not None)
    return SwappedLabels(len(labels) - 1, n_sentences, labels[0], float(np.mean(labels[1:])), MIN_EXCESS, ALPHA)


def find_inner_and_outer_roles(
    n_shared_pairs: Mapping[ViewName, np.ndarray], role_names: Mapping[ViewName, Sequence[str]]
) -> tuple[tuple[str, str], ...]:
    """Returns the pairs of roles of which the first one's sieve lies in the second's, from how many pairs each two sieves share in each view."""
    shared: dict[tuple[str, str], float] = {}
    for view, counts in n_shared_pairs.items():
        for i, inner in enumerate(role_names[view]):
            for j, outer in enumerate(role_names[view]):
                shared[inner, outer] = shared.get((inner, outer), 0.0) + float(counts[i, j])
    return tuple((a, b) for (a, b), number in shared.items() if a != b and 0 < number == shared[a, a])
