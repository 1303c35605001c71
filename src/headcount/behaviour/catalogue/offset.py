"""Offset: attends to one fixed relative position, such as the previous token (offset:-1) or the next one (offset:+1)."""

from __future__ import annotations

from headcount.behaviour.base import About, Corpus, Sieve, View

ABOUT = About(source="Voita et al. 2019, positional heads", positional=True)
OFFSETS = ("-3", "-2", "-1", "0", "+1", "+2", "+3")


def names(_corpus: Corpus) -> tuple[str, ...]:
    """The offsets that are tested."""
    return OFFSETS


def sieve(view: View, name: str) -> Sieve:
    """The key at that offset, unless it is a delimiter."""
    at = view.distance == int(name)
    return at[None] & view.queries.ordinary[:, :, None] & view.keys.ordinary[:, None, :]
