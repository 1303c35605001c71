"""Diagonal: in cross-attention, looks at the source token at the same relative place of its sentence, one token to either side included."""

from __future__ import annotations

from headcount.behaviour.base import About, Sieve, View

ABOUT = About(source="Ding et al. 2017; alignment of source and target by place", where=frozenset({"cross"}), positional=True)


def sieve(view: View, _name: str) -> Sieve:
    """Ordinary source tokens within one place of where the target token falls."""
    n_queries = view.queries.real.sum(-1)[:, None, None].clamp(min=1)
    n_keys = view.keys.real.sum(-1)[:, None, None]
    expected = view.queries.positions[None, :, None] * (n_keys - 1) / (n_queries - 1).clamp(min=1)
    near = (view.keys.positions[None, None, :] - expected).abs() <= 1
    return near & view.queries.ordinary[:, :, None] & view.keys.ordinary[:, None, :]
