"""Random: heads chosen by the seed alone, over the whole model, or the same share of every kind of attention ("type"). The control of comparisons.

Budhraja et al. 2020 found that large random fractions can go with limited loss once the model is fine-tuned.
"""

from __future__ import annotations

from headcount.pruning.base import About, Choice, Work
from headcount.pruning.scope import keep_within

ABOUT = About(source="Budhraja et al. 2020", variants=("", "type"), draws=True)


def choose(work: Work, variant: str) -> Choice:
    """The plan."""
    scores = work.scores(work.random().random(len(work.heads)), "random")
    return Choice(keep_within(work, scores, work.keep, variant or "global"), scores=scores)
