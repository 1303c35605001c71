"""Same token: attends to other occurrences of the same token (duplicate-token heads)."""

from __future__ import annotations

from headcount.behaviour.base import About, Sieve, View

ABOUT = About(source="Wang et al. 2023, Interpretability in the Wild")


def sieve(view: View, _name: str) -> Sieve:
    """Keys with the query's token at another place."""
    same = view.queries.ids[:, :, None] == view.keys.ids[:, None, :]
    elsewhere = (view.distance != 0)[None]
    return same & elsewhere & view.queries.ordinary[:, :, None] & view.keys.ordinary[:, None, :]
