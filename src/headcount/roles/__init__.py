"""Roles: what every head does, one sieve per file, found by its name.

The module itself can be called: `hc.roles(model, text, tokenizer)` is `headcount.roles.roles`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from headcount.registry import ROLES
from headcount.roles._contract import LEAST, About, Corpus, Side, View, bare
from headcount.roles._files import read_roles, roles_into
from headcount.roles._given import SENTENCES, Parsed, corpus_of, roles
from headcount.roles._measure import RoleProbe, check_input, view_of
from headcount.roles._roles import biases_by_sentence, measure
from headcount.roles._table import BestHead, Colocation, RoleScore, RoleTable

__all__ = [
    "LEAST",
    "ROLES",
    "SENTENCES",
    "About",
    "BestHead",
    "Colocation",
    "Corpus",
    "Parsed",
    "RoleProbe",
    "RoleScore",
    "RoleTable",
    "Side",
    "View",
    "bare",
    "biases_by_sentence",
    "check_input",
    "corpus_of",
    "measure",
    "read_roles",
    "roles",
    "roles_into",
    "view_of",
]


class _Callable(ModuleType):
    """A module that can be called, since the package and its main function share their name in `headcount`."""

    def __call__(self, *args: Any, **options: Any) -> RoleTable:
        return roles(*args, **options)


sys.modules[__name__].__class__ = _Callable
