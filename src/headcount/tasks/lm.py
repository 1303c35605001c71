"""Language modelling on text files: causal or masked, as the model is."""

from __future__ import annotations

from headcount.archs.modules import shifts
from headcount.data import Task
from headcount.tasks import Request, causal_lm, masked_lm
from headcount.tasks.causal_lm import USES

__all__ = ["USES", "build"]


def build(request: Request) -> Task:
    """The task."""
    return (causal_lm if shifts(request.model) else masked_lm).build(request)
