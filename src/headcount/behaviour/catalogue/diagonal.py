from __future__ import annotations

from dataclasses import dataclass

from headcount.behaviour.base import Role, RoleInfo, Sieve, View


@dataclass(frozen=True)
class Diagonal(Role):
    """Diagonal: in cross-attention, attends to the source token at the same relative position of its sentence, or one token to either side."""

    info = RoleInfo(source="Ding et al. 2017; alignment of source and target by position", attention=frozenset({"cross"}), positional=True)

    def sieve(self, view: View) -> Sieve:
        """Returns the ordinary source tokens within one position of that of the target token."""
        n_queries = view.queries.real.sum(-1)[:, None, None].clamp(min=1)
        n_keys = view.keys.real.sum(-1)[:, None, None]
        expected = view.queries.positions[None, :, None] * (n_keys - 1) / (n_queries - 1).clamp(min=1)
        return ((view.keys.positions[None, None, :] - expected).abs() <= 1) & view.ordinary
