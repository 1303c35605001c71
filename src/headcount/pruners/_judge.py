"""What a plan costs once it is carried out: the loss on the selection split, which decides between plans, and between repaired and not repaired."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from headcount.data import Task
from headcount.errors import UnsupportedModel
from headcount.evaluate import evaluate
from headcount.gates import HeadGates
from headcount.heads import HeadMap
from headcount.plan import Plan
from headcount.pruners._contract import Work
from headcount.refit import Repaired
from headcount.surgery.verify import gates_of

CHECKED = 256
"""Examples of the selection split that judge."""


def loss_of(work: Work, model: nn.Module, plan: Plan, limit: int = CHECKED) -> float:
    """The mean loss of a model without the heads that a plan removes."""
    data = replace(work.data, metric=None) if isinstance(work.data, Task) else work.data
    with HeadGates(model, gates_of(HeadMap.of(model), plan)):
        return evaluate(model, data, split="selection", limit=limit).loss


def better(work: Work, plan: Plan, source: nn.Module, done: Repaired) -> tuple[Repaired, dict[str, Any]]:
    """The repair, or the model as it was where that has the smaller loss on the selection split, and both losses.

    A block that gives nearly what it gave need not help what comes after it: with most heads gone, what a classifier reads at one token can get
    worse while the mean over all tokens gets better. Data without a loss cannot tell; then the repair stays, and the entry says so.
    """
    try:
        without, with_it = loss_of(work, source, plan), loss_of(work, done.model, plan)
    except UnsupportedModel as error:
        return done, {"stage": "repair", "kept": True, "unchecked": str(error)}
    kept = with_it <= without
    entry = {"stage": "repair", "kept": kept, "loss": with_it, "loss without": without}
    return (done if kept else Repaired(source, {})), entry
