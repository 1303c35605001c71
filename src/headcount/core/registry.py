"""Registries: find importances, roles, definitions, pruners, tasks, export targets, studies, papers by name. Nothing is imported unused.

A name is a file of the folder of its kind, an entry point of an installed package in the group `headcount.<kind>` (`package.module:Class`, or a
module with one such class), or a class that was registered in this process: `@IMPORTANCES.register("top-share")`.
"""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoints, entry_points
from inspect import getdoc, isclass
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from headcount.core.errors import DuplicateName, OptionError, PluginError, UnknownName, unknown_name_error
from headcount.core.options import Configurable

RegisteredKind = TypeVar("RegisteredKind", bound=Configurable)


def _find_module(name: str) -> ModuleSpec | None:
    """Finds the file of a module without importing the packages around it."""
    parts = name.split(".")
    spec = importlib.util.find_spec(parts[0])  # also asks the finders of editable installs
    for end in range(2, len(parts) + 1):
        if spec is None:
            return None
        spec = PathFinder.find_spec(".".join(parts[:end]), spec.submodule_search_locations or [])
    return spec


class Registry:
    """The things of one kind by name."""

    def __init__(self, kind: str, singular: str, package: str) -> None:
        self.kind = kind
        self.singular = singular
        self.package = package
        self._registered: dict[str, type[Configurable]] = {}

    @cached_property
    def _entry_points(self) -> EntryPoints:
        return entry_points(group=f"headcount.{self.kind}")

    @cached_property
    def _modules(self) -> dict[str, str]:
        """The modules of the kind's own folder, by the names that they are registered under."""
        spec = _find_module(self.package)
        folders = list(spec.submodule_search_locations or []) if spec else []
        modules = [info.name for info in pkgutil.iter_modules(folders) if not info.ispkg and not info.name.startswith("_")]
        return {name.replace("_", "-"): f"{self.package}.{name}" for name in modules}

    def _import_paths(self) -> dict[str, str]:
        """Returns where every name comes from: `module` or `module:Class`."""
        sources = dict(self._modules)
        for point in self._entry_points:
            if point.name in sources:
                raise DuplicateName(
                    f"{self.singular} '{point.name}' is registered twice: by {sources[point.name]} and by {point.value}. "
                    "Rename the plug-in's entry point."
                )
            sources[point.name] = point.value
        return sources | {name: f"{cls.__module__}:{cls.__qualname__}" for name, cls in self._registered.items()}

    def _import_path(self, name: str) -> str:
        sources = self._import_paths()
        if name not in sources:
            groups = ", ".join(point.group for point in entry_points(name=name) if point.group.startswith("headcount."))
            hint = f". An installed package registers '{name}' in {groups}; the entry points of this kind are in headcount.{self.kind}"
            raise UnknownName(f"{unknown_name_error(self.singular, name, sources)}{hint if groups else ''}")
        return sources[name]

    def register(self, name: str) -> Callable[[type[RegisteredKind]], type[RegisteredKind]]:
        """Registers a class under a name in this process, as an entry point does for good."""

        def decorate(cls: type[RegisteredKind]) -> type[RegisteredKind]:
            if name in (sources := self._import_paths()):
                raise DuplicateName(f"{self.singular} '{name}' is registered already, by {sources[name]}; choose another name")
            self._require_class(cls, name, f"{cls.__module__}:{cls.__qualname__}")
            cls.name = name
            self._registered[name] = cls
            return cls

        return decorate

    def names(self) -> list[str]:
        """Returns every registered name, sorted, without importing what it names."""
        return sorted(self._import_paths())

    def documentation(self, name: str) -> str:
        """Returns the docstring of a thing, read from its file without importing it; empty where it has none or the file cannot be read."""
        source = self._import_path(name)
        if name in self._registered:
            return getdoc(self._registered[name]) or ""
        module, _, class_name = source.partition(":")
        spec = _find_module(module)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return ""
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        chosen = [node for node in classes if node.name == class_name or (not class_name and _declares_info(node))]
        if class_name and not chosen:
            return ""
        return ast.get_docstring(chosen[0] if chosen else tree) or ""

    def summary(self, name: str) -> str:
        """Returns the first line of a thing's docstring."""
        return self.documentation(name).partition("\n")[0]

    def get(self, name: str) -> type[Configurable]:
        """Returns the class registered under `name`.

        Raises:
            UnknownName: nothing is registered under the name.
            PluginError: the module of an entry point cannot be imported.
            OptionError: what the name stands for is no class of a method.
        """
        source = self._import_path(name)
        if name in self._registered:
            return self._registered[name]
        module_name, _, class_name = source.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            if name not in self._entry_points.names:
                raise
            raise PluginError(
                f"{source}, registered as {self.singular} '{name}' by an installed package, cannot be imported: {error}. "
                "Correct its entry point or install what it needs, or uninstall the package."
            ) from error
        cls = self._require_class(getattr(module, class_name, None) if class_name else _only_class_with_info(module), name, source)
        cls.name = name
        return cls

    def _require_class(self, cls: object, name: str, import_path: str) -> type[Configurable]:
        """Returns `cls`; raises OptionError unless it is the class of a method."""
        if not isclass(cls) or not issubclass(cls, Configurable):
            raise OptionError(
                f"{import_path}, registered as {self.singular} '{name}', names no class of that kind; write an entry point as package.module:Class, "
                "or leave one class with `info` in the module"
            )
        if not hasattr(cls, "info"):
            raise OptionError(f"{import_path}, registered as {self.singular} '{name}', declares no info; see the base class of its kind")
        return cls

    def parse(self, text: str | Configurable, base: type[RegisteredKind]) -> RegisteredKind:
        """Returns the object that a text describes, `name:variant(option=value;…)`; an object of the kind is returned as it is.

        Raises:
            UnknownName: nothing is registered under the name, or it has no such option.
            OptionError: a value has the wrong type or is out of range.
        """
        if isinstance(text, base):
            return text
        if not isinstance(text, str):
            raise OptionError(f"{self.singular} must be a name such as '{self.names()[0]}', or an object of that kind; got {text!r}")
        stripped = text.strip()
        end = min((index for index in (stripped.find(":"), stripped.find("(")) if index >= 0), default=len(stripped))
        cls = self.get(stripped[:end].strip())
        if not issubclass(cls, base):
            raise OptionError(f"{cls.__module__}:{cls.__qualname__}, registered as {self.singular} '{cls.name}', is no {base.__name__}")
        return cls.from_text(stripped[end:])


def _declares_info(node: ast.ClassDef) -> bool:
    targets = [target for line in node.body if isinstance(line, ast.Assign) for target in line.targets]
    targets += [line.target for line in node.body if isinstance(line, ast.AnnAssign) and line.value is not None]
    return any(isinstance(target, ast.Name) and target.id == "info" for target in targets)


def _only_class_with_info(module: ModuleType) -> type | None:
    """Returns the class of a module that declares `info`; None unless there is exactly one."""
    own = [value for value in vars(module).values() if isclass(value) and value.__module__ == module.__name__ and "info" in vars(value)]
    return own[0] if len(own) == 1 else None


IMPORTANCES = Registry("importance", "importance", "headcount.importance.methods")
PRUNERS = Registry("pruners", "pruner", "headcount.pruning.methods")
ROLES = Registry("roles", "role", "headcount.behaviour.catalogue")
TASKS = Registry("tasks", "task", "headcount.data.tasks")
EXPORTS = Registry("exports", "export target", "headcount.surgery.export")
DEFINITIONS = Registry("definitions", "definition", "headcount.behaviour.definitions")
STUDIES = Registry("studies", "study", "headcount.studies")
PAPERS = Registry("papers", "paper", "headcount.studies.papers")
_REGISTRIES = (IMPORTANCES, PRUNERS, ROLES, DEFINITIONS, TASKS, EXPORTS, STUDIES, PAPERS)
KINDS: Mapping[str, Registry] = {registry.kind: registry for registry in _REGISTRIES}
"""The one registry of every kind, so that what is registered is known everywhere."""
