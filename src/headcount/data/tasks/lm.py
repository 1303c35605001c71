"""Language modelling on text files: causal or masked, as the model is."""

from __future__ import annotations

from headcount.data.open_task import Request
from headcount.data.task import Task
from headcount.data.tasks import causal_lm, masked_lm
from headcount.data.tasks.causal_lm import USES
from headcount.models.modules import shifts

__all__ = ["USES", "build"]


def build(request: Request) -> Task:
    """The task."""
    return (causal_lm if shifts(request.model) else masked_lm).build(request)
