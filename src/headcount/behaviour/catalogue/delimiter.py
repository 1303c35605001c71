"""Delimiter: attends to the special tokens: all of them (delimiter:any), the first (delimiter:first, [CLS]) or the others (delimiter:sep)."""

from __future__ import annotations

from headcount.behaviour.base import About, Corpus, Sieve, View

ABOUT = About(source="Pande et al. 2021", where=frozenset({"self", "image"}), special_targets=True)


def names(corpus: Corpus) -> tuple[str, ...]:
    """Those of which the text has any."""
    if corpus.grid:
        return ("any",)
    first = any(s.special[:1] == (True,) for s in corpus.sentences)
    rest = any(any(s.special[1:]) for s in corpus.sentences)
    return (*(("any",) if first or rest else ()), *(("first",) if first else ()), *(("sep",) if rest else ()))


def sieve(view: View, name: str) -> Sieve:
    """Special keys, asked for by ordinary tokens."""
    keys = view.keys.special & view.keys.real
    start = view.keys.positions[None, :] == 0
    keys = keys & start if name == "first" else keys & ~start if name == "sep" else keys
    return keys[:, None, :] & view.queries.ordinary[:, :, None]
