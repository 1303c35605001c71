"""Segment: attends to its own text of a pair, delimiters excluded (the block sieve); pairs only.

segment:entropy is the role as it was published: the ratio times the entropy of the token's attention. A uniform head scores ln N by it, which is
above 3 for more than 20 tokens, so it is measured only when asked for by name, and is never a label.
"""

from __future__ import annotations

from headcount.behaviour.base import About, Corpus, Sieve, View

ABOUT = About(source="Pande et al. 2021, block heads", needs=frozenset({"pairs"}), positional=True, legacy=frozenset({"entropy"}))


def names(corpus: Corpus) -> tuple[str, ...]:
    """One role where there are pairs, none elsewhere."""
    return ("",) if corpus.has_pairs else ()


def sieve(view: View, _name: str) -> Sieve:
    """Ordinary tokens of the same segment, in sentences that have two."""
    both = (view.keys.segments == 1).any(-1)
    same = view.queries.segments[:, :, None] == view.keys.segments[:, None, :]
    return same & both[:, None, None] & view.queries.ordinary[:, :, None] & view.keys.ordinary[:, None, :]
