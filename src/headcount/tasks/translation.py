"""Translation by an encoder–decoder, from two parallel line files (source, target) or a table; the loss is teacher-forced.

The metric is BLEU (metric=chrf for chrF) of greedily generated text; num_beams, max_new_tokens and prefix are passed on.
"""

from __future__ import annotations

from headcount.data import Task
from headcount.tasks import Request, _seq2seq

USES = _seq2seq.USES


def build(request: Request) -> Task:
    """The task."""
    return _seq2seq.build(request, (("source",), ("src",)), (("target",), ("tgt",)))
