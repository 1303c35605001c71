"""Finds things by name: modules of a package by file name, third-party ones by entry point; nothing is imported until used."""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from types import ModuleType
from typing import Self

from headcount.core.errors import DuplicateName, UnknownName


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """The error for a name that is not known, with the nearest known name."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return UnknownName(f"no {kind} '{name}'.{hint} Known: {', '.join(names) or 'none'}")


def _located(module: str) -> ModuleSpec | None:
    """Where a module is, found without importing the packages around it."""
    spec, parts, places = None, module.split("."), None
    for end in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:end]), places)
        if spec is None:
            return None
        places = spec.submodule_search_locations or []
    return spec


SINGULAR = {"pruners": "pruner", "roles": "role", "tasks": "task", "studies": "study"}


class Registry:
    """The things of one kind: a name is a module `<package>.<name>` or an entry point in the group `headcount.<kind>`."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._added: dict[str, str] = {}

    @cached_property
    def _points(self) -> EntryPoints:
        return entry_points(group=f"headcount.{self.kind}")

    def _builtin(self) -> dict[str, str]:
        spec = importlib.util.find_spec(self.package)
        paths = list(spec.submodule_search_locations or []) if spec else []
        names = [info.name for info in pkgutil.iter_modules(paths) if not info.name.startswith("_")]
        return {name.replace("_", "-"): f"{self.package}.{name}" for name in names}

    def _sources(self) -> Mapping[str, str]:
        sources = self._builtin()
        for point in self._points:
            if point.name in sources:
                raise DuplicateName(
                    f"{self.kind} '{point.name}' is registered twice: by {sources[point.name]} and by {point.value}. "
                    "Rename the plug-in's entry point."
                )
            sources[point.name] = point.value
        return {**sources, **self._added}

    def add(self, name: str, module: str) -> None:
        """Registers an importable module under a name for this process, as an entry point does for good."""
        known = self._sources()
        if name in known:
            raise DuplicateName(f"{self.kind} '{name}' is registered already, by {known[name]}; choose another name")
        self._added[name] = module

    def names(self) -> list[str]:
        """Every registered name, sorted, without importing what it names."""
        return sorted(self._sources())

    def about(self, name: str) -> str:
        """The first line of a thing's docstring; empty where it has none."""
        return self.documentation(name).partition("\n")[0]

    def documentation(self, name: str) -> str:
        """A thing's docstring, read from its file without importing it; empty where it has none."""
        sources = self._sources()
        if name not in sources:
            raise unknown(SINGULAR.get(self.kind, self.kind), name, sources)
        spec = _located(sources[name].partition(":")[0])
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return ""
        return ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""

    def get(self, name: str) -> ModuleType:
        """The module registered under `name`."""
        sources = self._sources()
        if name not in sources:
            raise unknown(SINGULAR.get(self.kind, self.kind), name, sources)
        return importlib.import_module(sources[name])


METHODS = Registry("importance", "headcount.importance.methods")
PRUNERS = Registry("pruners", "headcount.pruning.methods")
ROLES = Registry("roles", "headcount.behaviour.catalogue")
TASKS = Registry("tasks", "headcount.data.tasks")
STUDIES = Registry("studies", "headcount.studies")
KINDS: Mapping[str, Registry] = {registry.kind: registry for registry in (METHODS, PRUNERS, ROLES, TASKS, STUDIES)}
"""The one registry of every kind, so that what is added is known to everybody."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A registered file by its name and, where it offers several, its variant; `module` is the file, which declares itself in `ABOUT`."""

    name: str
    variant: str
    module: ModuleType

    @classmethod
    def find(cls, registry: Registry, text: str) -> Self:
        """What `name` or `name:variant` names."""
        name, _, variant = text.strip().partition(":")
        module = registry.get(name)
        variants = module.ABOUT.variants
        if variant and variant not in variants:
            raise unknown(f"variant of {name}", variant, variants)
        return cls(name, variant or variants[0], module)

    def __str__(self) -> str:
        return self.name if self.variant == self.module.ABOUT.variants[0] else f"{self.name}:{self.variant}"
