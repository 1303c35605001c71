from __future__ import annotations

from dataclasses import dataclass

from headcount.data.tasks._seq2seq import SEQ2SEQ, TextToText


@dataclass(frozen=True)
class Summarisation(TextToText):
    """Summarisation by an encoder–decoder, from two parallel line files (document, summary) or a table; the loss is teacher-forced.

    The metric is BLEU (metric=chrf for chrF) of greedily generated text.
    """

    source_names = (("document",), ("article",), ("dialogue",), ("text",), ("source",))
    target_names = (("summary",), ("highlights",), ("target",))
    info = SEQ2SEQ
