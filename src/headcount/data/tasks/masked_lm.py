"""Masked language modelling on text files: 15 % of the tokens are replaced by the mask token, always the same ones for one seed.

Windows of `max_length` tokens (by=window), or an example for each line or paragraph (by=line, by=paragraph). The metric is perplexity.
"""

from __future__ import annotations

from collections.abc import Sequence

from headcount.data.metrics import PERPLEXITY
from headcount.data.open_task import Request
from headcount.data.task import Split, Task
from headcount.data.tasks._masking import mask_id, masked
from headcount.data.tasks._splits import divide, each
from headcount.data.tasks._tokenize import Packed, check_head, check_tokenizer, make_task, special_ids
from headcount.data.tasks._windows import Passage, passages, texts

USES = ("train", "eval", "text_column", "max_length", "truncate", "by")


def build(request: Request) -> Task:
    """The task."""
    check_head(request, ("MaskedLM", "ForPreTraining"), "AutoModelForMaskedLM")
    check_tokenizer(request)
    mask, special = mask_id(request), special_ids(request)

    def divided() -> dict[Split, list[Passage]]:
        return divide(request, lambda source: passages(request, source), Passage.key)

    def examples(passages: Sequence[Passage]) -> Packed:
        return Packed(masked(passage.ids, (request.seed, number), mask_id=mask, special=special) for number, passage in enumerate(passages))

    found = divided()
    return make_task(request, each(lambda split: examples(found[split])), PERPLEXITY, texts(request, divided))
