"""The measurements of the studies, one file each beside the study of the same name: with torch, without tables, sentences or figures.

A file is imported when it is first used, and with it torch, which options and help texts do without.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headcount.studies._measure import all_but_one as all_but_one
    from headcount.studies._measure import attention_maps as attention_maps
    from headcount.studies._measure import by_type as by_type
    from headcount.studies._measure import compensation as compensation
    from headcount.studies._measure import dynamics as dynamics
    from headcount.studies._measure import finetune_roles as finetune_roles
    from headcount.studies._measure import from_scratch as from_scratch
    from headcount.studies._measure import importance_map as importance_map
    from headcount.studies._measure import importance_or_random as importance_or_random
    from headcount.studies._measure import interventions as interventions
    from headcount.studies._measure import kept as kept
    from headcount.studies._measure import language_groups as language_groups
    from headcount.studies._measure import languages as languages
    from headcount.studies._measure import layers as layers
    from headcount.studies._measure import penalty_sweep as penalty_sweep
    from headcount.studies._measure import plan_transfer as plan_transfer
    from headcount.studies._measure import pruning_curve as pruning_curve
    from headcount.studies._measure import rare_words as rare_words
    from headcount.studies._measure import relation_accuracy as relation_accuracy
    from headcount.studies._measure import remaining_roles as remaining_roles
    from headcount.studies._measure import role_definitions as role_definitions
    from headcount.studies._measure import role_families as role_families
    from headcount.studies._measure import role_pruning as role_pruning
    from headcount.studies._measure import role_tables as role_tables
    from headcount.studies._measure import roles_importance as roles_importance
    from headcount.studies._measure import single_heads as single_heads
    from headcount.studies._measure import speed as speed
    from headcount.studies._measure import strategies as strategies
    from headcount.studies._measure import survivors as survivors
    from headcount.studies._measure import task_transfer as task_transfer
    from headcount.studies._measure import training_log as training_log
    from headcount.studies._measure import transfer as transfer
    from headcount.studies._measure import weight_change as weight_change


def __getattr__(name: str) -> ModuleType:
    if name.startswith("_"):
        raise AttributeError(name)
    return import_module(f"{__name__}.{name}")
