"""headcount: what each attention head of a transformer does, which can go, at what cost, and the smaller model."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from headcount.core.errors import raising_out_of_memory

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from headcount.behaviour.roles import roles
    from headcount.core.budget import Budget
    from headcount.core.certificate import Certificate
    from headcount.core.errors import HeadcountError
    from headcount.core.heads import Head
    from headcount.core.plan import Plan
    from headcount.core.scores import Scores
    from headcount.core.study_result import StudyResult
    from headcount.data.evaluate import evaluate
    from headcount.data.mask import mask
    from headcount.data.open_task import open_task
    from headcount.data.task import Task
    from headcount.importance.score import score
    from headcount.models.gates import HeadGates
    from headcount.models.head_map import HeadMap
    from headcount.models.observe import observe
    from headcount.pruning.prune import prune
    from headcount.pruning.recipe import Recipe
    from headcount.pruning.repair.repair import repair
    from headcount.studies._paper import PaperResult
    from headcount.studies._paper_in_python import paper
    from headcount.studies._run_study import study
    from headcount.surgery.cut import cut
    from headcount.surgery.export_base import export
    from headcount.surgery.legacy import load_legacy
    from headcount.surgery.load import load, register
    from headcount.surgery.save import save
    from headcount.surgery.tokenizer import load_tokenizer
    from headcount.workflows.analyze import analyze
    from headcount.workflows.certify import certify
    from headcount.workflows.compare import compare
    from headcount.workflows.find import find

_HOME = {
    "Budget": "core.budget",
    "Certificate": "core.certificate",
    "Head": "core.heads",
    "HeadGates": "models.gates",
    "HeadMap": "models.head_map",
    "HeadcountError": "core.errors",
    "PaperResult": "studies._paper",
    "Plan": "core.plan",
    "Recipe": "pruning.recipe",
    "Scores": "core.scores",
    "StudyResult": "core.study_result",
    "Task": "data.task",
    "analyze": "workflows.analyze",
    "certify": "workflows.certify",
    "compare": "workflows.compare",
    "cut": "surgery.cut",
    "evaluate": "data.evaluate",
    "export": "surgery.export_base",
    "find": "workflows.find",
    "load": "surgery.load",
    "load_legacy": "surgery.legacy",
    "load_tokenizer": "surgery.tokenizer",
    "mask": "data.mask",
    "observe": "models.observe",
    "open_task": "data.open_task",
    "paper": "studies._paper_in_python",
    "prune": "pruning.prune",
    "register": "surgery.load",
    "repair": "pruning.repair.repair",
    "roles": "behaviour.roles",
    "save": "surgery.save",
    "score": "importance.score",
    "study": "studies._run_study",
}

__all__ = [
    "Budget",
    "Certificate",
    "Head",
    "HeadGates",
    "HeadMap",
    "HeadcountError",
    "PaperResult",
    "Plan",
    "Recipe",
    "Scores",
    "StudyResult",
    "Task",
    "__version__",
    "analyze",
    "certify",
    "compare",
    "cut",
    "evaluate",
    "export",
    "find",
    "load",
    "load_legacy",
    "load_tokenizer",
    "mask",
    "observe",
    "open_task",
    "paper",
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
    with raising_out_of_memory(f"the import of headcount.{name}"):
        return getattr(importlib.import_module(f"headcount.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
