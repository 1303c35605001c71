"""headcount: what each attention head of a transformer does, which can go, at what cost, and the smaller model."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from headcount.analyze import analyze
    from headcount.data import Task
    from headcount.errors import HeadcountError
    from headcount.gates import HeadGates, mask
    from headcount.heads import Head, HeadMap
    from headcount.importance import score
    from headcount.plan import Budget, Plan
    from headcount.pruners import prune
    from headcount.refit import repair
    from headcount.roles import roles
    from headcount.scores import Scores
    from headcount.surgery import cut, load, load_legacy, register, save

_HOME = {
    "Budget": "plan",
    "Head": "heads",
    "HeadGates": "gates",
    "HeadMap": "heads",
    "HeadcountError": "errors",
    "Plan": "plan",
    "Scores": "scores",
    "Task": "data",
    "analyze": "analyze",
    "cut": "surgery",
    "load": "surgery",
    "load_legacy": "surgery",
    "mask": "gates",
    "prune": "pruners",
    "register": "surgery",
    "repair": "refit",
    "roles": "roles",
    "save": "surgery",
    "score": "importance",
}

__all__ = [
    "Budget",
    "Head",
    "HeadGates",
    "HeadMap",
    "HeadcountError",
    "Plan",
    "Scores",
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
]


def __getattr__(name: str) -> object:
    """Imports a public name when it is first asked for, so that the package itself imports no torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'headcount' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"headcount.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
