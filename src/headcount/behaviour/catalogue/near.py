from __future__ import annotations

from dataclasses import dataclass

from headcount.behaviour.base import Role, RoleInfo, Sieve, View


@dataclass(frozen=True)
class Near(Role):
    """Near: in images, attends to the patches one step away in any direction, and to itself."""

    info = RoleInfo(
        source="Raghu et al. 2021, Do Vision Transformers See Like Convolutional Neural Networks?",
        attention=frozenset({"image"}),
        positional=True,
    )

    def sieve(self, view: View) -> Sieve:
        """Returns the patch itself and its neighbours."""
        return (view.grid_distance(0) <= 1) & (view.grid_distance(1) <= 1) & view.ordinary
