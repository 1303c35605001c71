from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headcount.core.errors import DataError
from headcount.data.metrics import PERPLEXITY
from headcount.data.task import Task
from headcount.data.task_builder import TaskInfo, TaskRequest
from headcount.data.tasks._splits import for_each_split
from headcount.data.tasks._tokenize import Packed, check_head, check_tokenizer, make_task
from headcount.data.tasks._windows import TEXT_ARGUMENTS, LanguageModelling, Passage
from headcount.models.modules import shifts_labels


@dataclass(frozen=True)
class CausalLM(LanguageModelling):
    """Causal language modelling on text files: each token from those before it.

    Windows of `max_length` tokens (by=window), or an example for each line or paragraph (by=line, by=paragraph). The metric is perplexity.
    """

    info = TaskInfo(TEXT_ARGUMENTS, model="AutoModelForCausalLM", metric="perplexity")

    def build(self, request: TaskRequest) -> Task:
        """Returns the task."""
        check_head(request, ("CausalLM", "LMHead", "ConditionalGeneration"), self.info.model)
        if not shifts_labels(request.model):
            raise DataError(f"task '{request.name}' needs a decoder, not {type(request.model).__name__}; try translation or masked-lm")
        check_tokenizer(request)
        passages = self.passages_by_split(request)
        examples = for_each_split(lambda split: Packed(_yield_model_inputs(passages[split])))
        return make_task(request, examples, PERPLEXITY, self.texts(request))


def _yield_model_inputs(passages: Sequence[Passage]) -> Iterator[dict[str, list[int]]]:
    for passage in passages:
        if len(passage.ids) < 2:
            raise DataError(f"{passage.origin} has a single token, which nothing comes before; remove it")
        yield {"input_ids": passage.ids, "labels": passage.ids}
