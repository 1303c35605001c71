"""The laws of pruners."""

from __future__ import annotations

from enum import StrEnum

from torch import nn

import headcount as hc
from headcount.core.options import Configurable
from headcount.core.registry import PRUNERS
from headcount.data.task import Task
from headcount.pruning.base import Pruner, PrunerInfo
from headcount.pruning.prune import Pruned
from headcount.pruning.recipe import Recipe
from headcount.testing.kinds.declaration import KindOfMethod, parse_and_check_declaration
from headcount.testing.kinds.tiny_inputs import random_token_task, tiny_classifier

SHORT = Recipe(steps=4, train_batch=4)
"""The training of pruners that train."""


class PrunerLaw(StrEnum):
    """The laws of pruners beside those of declarations."""

    PRUNES_A_MODEL = "it prunes a model"
    LEAVES_THE_MODEL = "it leaves the model as it was"
    IS_CARRIED_OUT = "its plan is carried out"
    KEEPS_WHAT_WAS_ASKED_FOR = "it keeps exactly the heads that are asked for"
    SAME_SEED = "the same seed gives the same plan"
    PROTECTED_HEADS_STAY = "protected heads stay"


KIND = KindOfMethod(PRUNERS, Pruner, PrunerInfo, Pruner.parse, PrunerLaw)


def check_pruner(pruner: str | Configurable, model: nn.Module | None = None, data: Task | None = None) -> None:
    """Raises LawBroken, an AssertionError, unless a pruner keeps the laws of pruners on a tiny model.

    The laws: it is a frozen dataclass with a docstring, documented options that refuse wrong values, and a complete `info`; its text gives it back;
    it keeps exactly the number of heads that is asked for, and never removes a protected one; the same seed gives the same plan; the model is left
    as it was. A pruner that trains does so for four steps.

    Args:
        pruner: The pruner as an object, or its text, such as "random:type".
        model: The model that is pruned, by default a tiny classifier.
        data: The task of that model, by default random tokens.

    Example:
        >>> check_pruner("random")
    """
    method, checks = parse_and_check_declaration(pruner, KIND)
    model = tiny_classifier() if model is None else model
    heads, task = hc.HeadMap.of(model), random_token_task(model) if data is None else data
    size = None if method.sizing_option_text else len(heads) // 2

    def prune_protecting(*protected: hc.Head) -> Pruned:
        with (
            checks.require_model_unchanged(model, PrunerLaw.LEAVES_THE_MODEL, random_numbers=False),
            checks.require_success(PrunerLaw.PRUNES_A_MODEL),
        ):
            return hc.prune(model, task, method, size, protected=protected, repair=False, recipe=SHORT)

    pruned = prune_protecting()
    n_left = len(hc.HeadMap.of(pruned.model))
    removed = pruned.plan.removed
    checks.require(n_left == len(heads) - len(removed), PrunerLaw.IS_CARRIED_OUT, f"{n_left} heads are left")
    checks.require(size in (None, n_left), PrunerLaw.KEEPS_WHAT_WAS_ASKED_FOR, f"{n_left} are left, {size} were asked for")
    checks.require(prune_protecting().plan.removed == removed, PrunerLaw.SAME_SEED, "two runs remove different heads")
    if size is None or not removed:
        return
    safe = prune_protecting(removed[0])
    checks.require(removed[0] not in safe.plan.removed, PrunerLaw.PROTECTED_HEADS_STAY, f"{removed[0]} was removed")
    n_safe = len(hc.HeadMap.of(safe.model))
    checks.require(n_safe == size, PrunerLaw.KEEPS_WHAT_WAS_ASKED_FOR, f"{n_safe} are left beside a protected head, {size} were asked for")
