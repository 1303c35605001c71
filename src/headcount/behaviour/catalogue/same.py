from __future__ import annotations

from dataclasses import dataclass

from headcount.behaviour.base import Role, RoleInfo, Sieve, View


@dataclass(frozen=True)
class Same(Role):
    """Same token: attends to other occurrences of the same token (duplicate-token heads)."""

    info = RoleInfo(source="Wang et al. 2023, Interpretability in the Wild", is_content=True)

    def sieve(self, view: View) -> Sieve:
        """Returns the keys with the query's token at another position."""
        is_same = view.queries.ids[:, :, None] == view.keys.ids[:, None, :]
        return is_same & (view.distance != 0)[None] & view.ordinary
