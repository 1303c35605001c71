from __future__ import annotations

from dataclasses import dataclass

from headcount.data.task import Task
from headcount.data.task_builder import TaskInfo, TaskRequest
from headcount.data.tasks._windows import TEXT_ARGUMENTS, LanguageModelling
from headcount.data.tasks.causal_lm import CausalLM
from headcount.data.tasks.masked_lm import MaskedLM
from headcount.models.modules import shifts_labels


@dataclass(frozen=True)
class LM(LanguageModelling):
    """Language modelling on text files: causal or masked, as the model is. See causal-lm and masked-lm."""

    info = TaskInfo(TEXT_ARGUMENTS, model="AutoModelForCausalLM or AutoModelForMaskedLM", metric="perplexity")

    def build(self, request: TaskRequest) -> Task:
        """Returns the task."""
        return (CausalLM if shifts_labels(request.model) else MaskedLM)(by=self.by).build(request)
