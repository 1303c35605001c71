"""Row: in images, attends to the other patches of its own row of the grid."""

from __future__ import annotations

from headcount.behaviour.base import About, Sieve, View

ABOUT = About(source="Raghu et al. 2021, Do Vision Transformers See Like Convolutional Neural Networks?", where=frozenset({"image"}))


def sieve(view: View, _name: str) -> Sieve:
    """Other patches of the query's row."""
    same = (view.apart(0) == 0) & (view.apart(1) != 0)
    return same & view.queries.ordinary[:, :, None] & view.keys.ordinary[:, None, :]
