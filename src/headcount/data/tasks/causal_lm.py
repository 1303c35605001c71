"""Causal language modelling on text files: each token from those before it.

Windows of `max_length` tokens (by=window), or an example for each line or paragraph (by=line, by=paragraph). The metric is perplexity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headcount.core.errors import DataError
from headcount.data.metrics import PERPLEXITY
from headcount.data.open_task import Request
from headcount.data.task import Split, Task
from headcount.data.tasks._splits import divide, each
from headcount.data.tasks._tokenize import Packed, check_head, check_tokenizer, make_task
from headcount.data.tasks._windows import Passage, passages, texts
from headcount.models.modules import shifts

USES = ("train", "eval", "text_column", "max_length", "truncate", "by")


def build(request: Request) -> Task:
    """The task."""
    check_head(request, ("CausalLM", "LMHead", "ConditionalGeneration"), "AutoModelForCausalLM")
    if not shifts(request.model):
        raise DataError(f"task '{request.name}' needs a decoder, not {type(request.model).__name__}; try translation or masked-lm")
    check_tokenizer(request)

    def divided() -> dict[Split, list[Passage]]:
        return divide(request, lambda source: passages(request, source), Passage.key)

    found = divided()
    made = each(lambda split: Packed(_examples(found[split])))
    return make_task(request, made, PERPLEXITY, texts(request, divided))


def _examples(found: Sequence[Passage]) -> Iterator[dict[str, list[int]]]:
    for passage in found:
        if len(passage.ids) < 2:
            raise DataError(f"{passage.where} has a single token, which nothing comes before; remove it")
        yield {"input_ids": passage.ids, "labels": passage.ids}
