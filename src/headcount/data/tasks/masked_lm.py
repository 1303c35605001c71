from __future__ import annotations

from dataclasses import dataclass

from headcount.data.metrics import PERPLEXITY
from headcount.data.task import Split, Task
from headcount.data.task_builder import TaskInfo, TaskRequest
from headcount.data.tasks._splits import for_each_split
from headcount.data.tasks._tokenize import Packed, check_head, check_tokenizer, make_task, special_ids
from headcount.data.tasks._windows import TEXT_ARGUMENTS, LanguageModelling, mask_id, mask_tokens


@dataclass(frozen=True)
class MaskedLM(LanguageModelling):
    """Masked language modelling on text files: 15 % of the tokens are replaced by the mask token, always the same ones for one seed.

    Windows of `max_length` tokens (by=window), or an example for each line or paragraph (by=line, by=paragraph). The metric is perplexity.
    """

    info = TaskInfo(TEXT_ARGUMENTS, model="AutoModelForMaskedLM", metric="perplexity")

    def build(self, request: TaskRequest) -> Task:
        """Returns the task."""
        check_head(request, ("MaskedLM", "ForPreTraining"), self.info.model)
        check_tokenizer(request)
        mask, special = mask_id(request), special_ids(request)
        passages = self.passages_by_split(request)

        def examples(split: Split) -> Packed:
            numbered = enumerate(passages[split])
            return Packed(
                mask_tokens(passage.ids, (request.seed, number), mask_id=mask, special_ids=special) for number, passage in numbered
            )

        return make_task(request, for_each_split(examples), PERPLEXITY, self.texts(request))
