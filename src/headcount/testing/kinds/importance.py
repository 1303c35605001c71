"""The laws of importances."""

from __future__ import annotations

import math
from enum import StrEnum

import torch
from torch import nn

import headcount as hc
from headcount.core.options import Configurable
from headcount.core.registry import IMPORTANCES
from headcount.importance.base import Importance, ImportanceInfo
from headcount.testing.kinds.declaration import KindOfMethod, parse_and_check_declaration
from headcount.testing.kinds.tiny_inputs import random_token_task, tiny_classifier


class ImportanceLaw(StrEnum):
    """The laws of importances beside those of declarations."""

    SCORES_A_MODEL = "it scores a model"
    LEAVES_THE_MODEL = "it leaves the model as it was"
    IS_FINITE = "it scores every head with a finite number"
    SAME_SEED = "the same seed gives the same scores"
    BATCHES_DO_NOT_MATTER = "batches do not matter"
    SILENT_SCORES_ZERO = "a head whose output projection is zero scores zero"
    SILENT_RANKS_LAST = "a head whose output projection is zero ranks last"


KIND = KindOfMethod(IMPORTANCES, Importance, ImportanceInfo, Importance.parse, ImportanceLaw)


def _zero_output_projection(model: nn.Module, head: hc.Head, head_map: hc.HeadMap) -> None:
    block = head_map.block_of(head)
    part = next(part for part in block.slices if part.tensor == f"{block.o.path}.weight")
    entries = torch.tensor(list(part.rows.of(block.position(head))))
    with torch.no_grad():
        model.get_parameter(part.tensor).index_fill_(part.axis, entries, 0.0)


def check_importance(importance: str | Configurable) -> None:
    """Raises LawBroken, an AssertionError, unless an importance keeps the laws of importances on a tiny model.

    The laws: it is a frozen dataclass with a docstring, documented options that refuse wrong values, and a complete `info`; its text gives it back;
    it scores every head of the model with a finite number, the same one again and for every batch size, and leaves the model as it was; a head
    whose output projection is zero scores zero and ranks last, unless `info.sees_projection` is False.

    Args:
        importance: The importance as an object, or its text, such as "top-share(k=2)".

    Example:
        >>> check_importance("gradient:token")
    """
    method, checks = parse_and_check_declaration(importance, KIND)
    model = tiny_classifier()
    heads, task = hc.HeadMap.of(model), random_token_task(model)
    with (
        checks.require_model_unchanged(model, ImportanceLaw.LEAVES_THE_MODEL),
        checks.require_success(ImportanceLaw.SCORES_A_MODEL),
    ):
        scores = hc.score(model, task, method)
    infinite = [str(head) for head, value in zip(heads, scores.values, strict=True) if not math.isfinite(value)]
    checks.require(not infinite, ImportanceLaw.IS_FINITE, f"those of {', '.join(infinite)} are not")
    for batch_size, law in ((None, ImportanceLaw.SAME_SEED), (3, ImportanceLaw.BATCHES_DO_NOT_MATTER)):
        with checks.require_success(law):
            again = hc.score(model, task, method, batch_size=batch_size)
        gap = max(abs(first - second) for first, second in zip(scores.values, again.values, strict=True))
        scale = max(1.0, *map(abs, scores.values))
        checks.require(gap <= 1e-6 * scale, law, f"scores differ by {gap:.3g}")
    if not method.info.sees_projection:
        return
    silent = heads[len(heads) // 2]
    _zero_output_projection(model, silent, heads)
    with checks.require_success(ImportanceLaw.SILENT_SCORES_ZERO):
        scores = hc.score(model, task, method, normalise="none")
    remedy = "declare sees_projection=False if that is meant"
    checks.require(abs(scores[silent]) <= 1e-9, ImportanceLaw.SILENT_SCORES_ZERO, f"it scores {scores[silent]:.3g}; {remedy}")
    ranking = scores.ranking()
    is_last = min(scores.values) < 0 or ranking[-1] == silent
    checks.require(is_last, ImportanceLaw.SILENT_RANKS_LAST, f"{ranking[-1]} ranks last; is higher_is_keep right?")
