"""Sink: attends to the first token of the sequence, whatever it is; the first token's own look does not count."""

from __future__ import annotations

from headcount.behaviour.base import About, Sieve, View

ABOUT = About(source="Xiao et al. 2024, Efficient Streaming Language Models with Attention Sinks", special_targets=True)


def sieve(view: View, _name: str) -> Sieve:
    """The first key, for all later queries."""
    first = (view.keys.positions == 0)[None, None, :]
    later = (view.queries.positions > 0)[None, :, None]
    return first & later & view.queries.ordinary[:, :, None]
