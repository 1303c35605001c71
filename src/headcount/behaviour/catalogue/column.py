"""Column: in images, attends to the other patches of its own column of the grid."""

from __future__ import annotations

from headcount.behaviour.base import About, Sieve, View

ABOUT = About(source="Raghu et al. 2021, Do Vision Transformers See Like Convolutional Neural Networks?", where=frozenset({"image"}))


def sieve(view: View, _name: str) -> Sieve:
    """Other patches of the query's column."""
    same = (view.apart(1) == 0) & (view.apart(0) != 0)
    return same & view.queries.ordinary[:, :, None] & view.keys.ordinary[:, None, :]
