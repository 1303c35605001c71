"""Near: in images, attends to the patches around its own, one step away in any direction, itself included."""

from __future__ import annotations

from headcount.behaviour.base import About, Sieve, View

ABOUT = About(
    source="Raghu et al. 2021, Do Vision Transformers See Like Convolutional Neural Networks?", where=frozenset({"image"}), positional=True
)


def sieve(view: View, _name: str) -> Sieve:
    """The patch itself and its neighbours."""
    close = (view.apart(0) <= 1) & (view.apart(1) <= 1)
    return close & view.queries.ordinary[:, :, None] & view.keys.ordinary[:, None, :]
