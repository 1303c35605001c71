"""The laws of methods of every kind, ours or a plug-in's. Each check raises LawBroken, an AssertionError, that names the law.

def test_my_importance():
    check_importance("top-share(k=2)")      # by its registered name, or as an object: TopShare(k=2)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from headcount.testing.kinds import definition, export_target, importance, pruner, role, study, task
from headcount.testing.kinds.declaration import DeclarationLaw
from headcount.testing.kinds.definition import check_definition
from headcount.testing.kinds.export_target import check_export_target
from headcount.testing.kinds.importance import check_importance
from headcount.testing.kinds.pruner import check_pruner
from headcount.testing.kinds.role import check_role
from headcount.testing.kinds.study import check_study
from headcount.testing.kinds.task import check_task

CHECKS: Mapping[str, Callable[[str], object]] = {
    "importance": check_importance,
    "roles": check_role,
    "definitions": check_definition,
    "pruners": check_pruner,
    "tasks": check_task,
    "exports": check_export_target,
    "studies": check_study,
}
"""The check of every kind, by the name of its registry."""
LAWS: Mapping[str, type[StrEnum]] = {
    "declaration": DeclarationLaw,
    **{module.KIND.registry.kind: module.KIND.laws for module in (importance, role, definition, pruner, task, export_target, study)},
}
"""The laws by the name of the registry of their kind, and those that all kinds share."""
__all__ = [
    "CHECKS",
    "LAWS",
    "check_definition",
    "check_export_target",
    "check_importance",
    "check_pruner",
    "check_role",
    "check_study",
    "check_task",
]
