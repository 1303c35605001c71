from __future__ import annotations

from dataclasses import dataclass

from headcount.behaviour.base import Role, RoleInfo, Sieve, View

REACH = 2


@dataclass(frozen=True)
class Local(Role):
    """Local: attends to the window of two tokens on either side, itself included; the window is cut at the ends of the sequence."""

    info = RoleInfo(source="Pande et al. 2021", positional=True)

    def sieve(self, view: View) -> Sieve:
        """Returns the keys at most two tokens away."""
        near = view.distance.abs() <= REACH
        return near[None] & view.queries.ordinary[:, :, None] & view.keys.real[:, None, :]
