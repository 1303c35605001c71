from __future__ import annotations

from dataclasses import dataclass

from headcount.data.tasks._seq2seq import SEQ2SEQ, TextToText


@dataclass(frozen=True)
class Translation(TextToText):
    """Translation by an encoder–decoder, from two parallel line files (source, target) or a table; the loss is teacher-forced.

    The metric is BLEU (metric=chrf for chrF) of greedily generated text.
    """

    source_names = (("source",), ("src",))
    target_names = (("target",), ("tgt",))
    info = SEQ2SEQ
