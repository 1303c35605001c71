from __future__ import annotations

from dataclasses import dataclass

from headcount.behaviour.base import Role, RoleInfo, Sieve, View


@dataclass(frozen=True)
class ColumnRole(Role):
    """Column: in images, attends to the other patches of the same column of the grid."""

    info = RoleInfo(
        source="Raghu et al. 2021, Do Vision Transformers See Like Convolutional Neural Networks?", attention=frozenset({"image"})
    )

    def sieve(self, view: View) -> Sieve:
        """Returns the other patches of the query's column."""
        return (view.grid_distance(1) == 0) & (view.grid_distance(0) != 0) & view.ordinary
