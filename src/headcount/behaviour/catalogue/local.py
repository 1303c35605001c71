"""Local: attends to the window of two tokens on either side, itself included; at the borders to what is there."""

from __future__ import annotations

from headcount.behaviour.base import About, Sieve, View

ABOUT = About(source="Pande et al. 2021", positional=True)
REACH = 2


def sieve(view: View, _name: str) -> Sieve:
    """Keys at most two tokens away."""
    near = view.distance.abs() <= REACH
    return near[None] & view.queries.ordinary[:, :, None] & view.keys.real[:, None, :]
