"""headcount: what each attention head of a transformer does, which can go, at what cost, and the smaller model."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from headcount.behaviour.given import roles
    from headcount.core.errors import HeadcountError
    from headcount.core.heads import Head
    from headcount.core.plan import Budget, Plan
    from headcount.core.scores import Scores
    from headcount.core.study_result import StudyResult
    from headcount.data.mask import mask
    from headcount.data.task import Task
    from headcount.importance.score import score
    from headcount.models.gates import HeadGates
    from headcount.models.head_map import HeadMap
    from headcount.pruning.prune import prune
    from headcount.pruning.repair.repair import repair
    from headcount.studies._run_study import study
    from headcount.surgery.cut import cut
    from headcount.surgery.legacy import load_legacy
    from headcount.surgery.load import load, register
    from headcount.surgery.save import save
    from headcount.workflows.analyze import analyze

_HOME = {
    "Budget": "core.plan",
    "Head": "core.heads",
    "HeadGates": "models.gates",
    "HeadMap": "models.head_map",
    "HeadcountError": "core.errors",
    "Plan": "core.plan",
    "Scores": "core.scores",
    "StudyResult": "core.study_result",
    "Task": "data.task",
    "analyze": "workflows.analyze",
    "cut": "surgery.cut",
    "load": "surgery.load",
    "load_legacy": "surgery.legacy",
    "mask": "data.mask",
    "prune": "pruning.prune",
    "register": "surgery.load",
    "repair": "pruning.repair.repair",
    "roles": "behaviour.given",
    "save": "surgery.save",
    "score": "importance.score",
    "study": "studies._run_study",
}

__all__ = [
    "Budget",
    "Head",
    "HeadGates",
    "HeadMap",
    "HeadcountError",
    "Plan",
    "Scores",
    "StudyResult",
    "Task",
    "__version__",
    "analyze",
    "cut",
    "load",
    "load_legacy",
    "mask",
    "prune",
    "register",
    "repair",
    "roles",
    "save",
    "score",
    "study",
]


def __getattr__(name: str) -> object:
    """Imports a public name when it is first asked for, so that the package itself imports no torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'headcount' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"headcount.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
