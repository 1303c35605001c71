"""Packages with an importance, a role and a pruner, built and installed, keep the laws of their kinds; registration, and what is not registered well.

Broken examples of every law are in tests/laws/test_broken_kinds.py.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headcount.behaviour.base import Role
from headcount.core.errors import OptionError, PluginError, UnknownName
from headcount.core.options import option
from headcount.core.registry import IMPORTANCES, PRUNERS, ROLES, Registry
from headcount.testing.kinds import check_importance, check_pruner, check_role
from headcount.testing.laws import LawBroken

PLUGINS = Path(__file__).parents[1] / "plugins"
KINDS: dict[str, tuple[Registry, str, Callable[[Any], None]]] = {
    "importance": (IMPORTANCES, "top-share", check_importance),
    "role": (ROLES, "first-token", check_role),
    "pruner": (PRUNERS, "deep-first", check_pruner),
}


def install(kind: str, site: Path) -> None:
    """Puts a package and its entry points on a path, as pip does."""
    source = PLUGINS / f"headcount-example-{kind}"
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    information = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (information / "entry_points.txt").write_text("\n".join(groups))
    for path in source.glob("*.py"):
        (site / path.name).write_text(path.read_text())


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for kind in KINDS:
        install(kind, tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    for registry, _, _ in KINDS.values():
        vars(registry).pop("_entry_points", None)
    yield
    for kind, (registry, _, _) in KINDS.items():
        vars(registry).pop("_entry_points", None)
        sys.modules.pop(f"headcount_example_{kind}", None)


def install_importances(site: Path, **points: str) -> None:
    """Puts entry points of importances on a path; `other` stands in a group of another name."""
    information = site / "broken_plugin-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1\n")
    groups = {"headcount.importance": {name: value for name, value in points.items() if name != "other"}}
    groups["headcount.importances"] = {name: value for name, value in points.items() if name == "other"}
    lines = [f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in own.items()) for group, own in groups.items()]
    (information / "entry_points.txt").write_text("\n".join(lines))


def plugin_class(kind: str) -> Any:
    registry, name, _ = KINDS[kind]
    return registry.get(name)


@pytest.mark.parametrize("kind", KINDS)
def test_an_installed_package_is_listed_and_parsed(kind: str) -> None:
    registry, name, _ = KINDS[kind]
    assert name in registry.names()
    assert registry.summary(name)
    cls = plugin_class(kind)
    assert cls.__module__ == f"headcount_example_{kind}" and registry.parse(name, cls) == cls()


@pytest.mark.parametrize(
    ("kind", "text"),
    [("importance", "top-share(k=2)"), ("role", "first-token(skip=1)"), ("pruner", "deep-first(reverse=true)")],
)
def test_the_laws_hold_for_the_examples(kind: str, text: str) -> None:
    registry, name, check = KINDS[kind]
    check(name)
    check(text)
    check(registry.parse(text, plugin_class(kind)))


@pytest.fixture
def broken() -> Iterator[Callable[..., Any]]:
    """A function that registers a subclass of a plug-in's class with other members as "broken", and returns an object of it."""

    def make(kind: str, **members: Any) -> Any:
        registry, parent = KINDS[kind][0], plugin_class(kind)
        registry._registered.pop("broken", None)
        namespace = {"__doc__": parent.__doc__, "__module__": __name__, "info": parent.info, **members}
        return registry.register("broken")(dataclass(frozen=True)(type("Broken", (parent,), namespace)))()

    yield make
    for registry, _, _ in KINDS.values():
        registry._registered.pop("broken", None)


def test_an_importance_that_gives_nan_is_named(broken: Callable[..., Any]) -> None:
    def of_block(_self: Any, observation: Any) -> torch.Tensor:
        return torch.full(observation.attention.shape[:2], math.nan)

    with pytest.raises(LawBroken, match=r"importance 'broken' breaks the law that it scores a model: NonFinite"):
        check_importance(broken("importance", of_block=of_block))


def test_an_importance_of_another_shape_is_named(broken: Callable[..., Any]) -> None:
    with pytest.raises(LawBroken, match="importance 'broken' breaks the law that it scores a model"):
        check_importance(broken("importance", of_block=lambda _self, observation: observation.attention.sum((-1, -2))[:, :1]))


def test_an_importance_that_claims_to_see_the_projection_is_named(broken: Callable[..., Any]) -> None:
    info = replace(plugin_class("importance").info, sees_projection=True)
    with pytest.raises(LawBroken, match="a head whose output projection is zero scores zero"):
        check_importance(broken("importance", info=info))


def test_a_role_whose_sieve_is_no_mask_is_named(broken: Callable[..., Any]) -> None:
    with pytest.raises(LawBroken, match="its sieve is a boolean tensor"):
        check_role(broken("role", sieve=lambda _self, view: view.ordinary.float()))
    with pytest.raises(LawBroken, match=r"its sieve has the shape \[batch, q, k\]"):
        check_role(broken("role", sieve=lambda _self, view: view.ordinary[..., :1, :-1]))


def test_a_pruner_that_keeps_too_many_heads_is_named(broken: Callable[..., Any]) -> None:
    base = importlib.import_module("headcount.pruning.base")

    def choose(_self: Any, context: Any) -> Any:
        return base.Choice(base.Plan.removing(context.heads[:1]))

    with pytest.raises(LawBroken, match="it keeps exactly the heads that are asked for"):
        check_pruner(broken("pruner", choose=choose))


def test_a_pruner_that_ignores_protected_heads_is_named(broken: Callable[..., Any]) -> None:
    base = importlib.import_module("headcount.pruning.base")

    def choose(_self: Any, context: Any) -> Any:
        return base.Choice(base.Plan.removing(context.heads[: len(context.heads) - context.keep]))

    with pytest.raises(LawBroken, match="protected"):
        check_pruner(broken("pruner", choose=choose))


@pytest.mark.parametrize("kind", KINDS)
def test_declarations_are_checked(kind: str) -> None:
    _, _, check = KINDS[kind]
    parent = plugin_class(kind)

    @dataclass(frozen=True)
    class Helpless(parent):
        """Has an option without a help text."""

        _: KW_ONLY
        more: int = option(1)
        info = parent.info

    with pytest.raises(LawBroken, match="every option has a help text: more has none"):
        check(Helpless())

    @dataclass(frozen=True)
    class Undocumented(parent):
        info = parent.info

    with pytest.raises(LawBroken, match="its class has a docstring"):
        check(Undocumented())

    class Bare(parent):
        """No dataclass."""

    with pytest.raises(LawBroken, match="it is a frozen dataclass"):
        check(Bare())
    with pytest.raises(LawBroken, match="its text describes an object"):
        check("no-such-method")


def test_an_entry_point_that_cannot_be_imported_is_named_and_does_not_hide_the_others(tmp_path: Path) -> None:
    install_importances(tmp_path / "site", gone="no_such_package.gone:Gone", classless="headcount_example_importance:Gone")
    assert {"gone", "classless", "top-share", "gradient"} <= set(IMPORTANCES.names())
    assert IMPORTANCES.summary("gone") == IMPORTANCES.summary("classless") == ""
    with pytest.raises(PluginError, match=r"no_such_package.gone:Gone, registered as importance 'gone' .* cannot be imported: No module"):
        IMPORTANCES.get("gone")
    with pytest.raises(OptionError, match="headcount_example_importance:Gone, registered as importance 'classless', names no class"):
        IMPORTANCES.get("classless")


def test_an_entry_point_in_a_group_of_another_name_is_found_for_the_message(tmp_path: Path) -> None:
    install_importances(tmp_path / "site", other="headcount_example_importance:TopShare")
    with pytest.raises(
        UnknownName, match=r"no importance 'other'.*registers 'other' in headcount.importances; .* are in headcount.importance$"
    ):
        IMPORTANCES.get("other")
    with pytest.raises(UnknownName, match=r"wanda$"):
        IMPORTANCES.get("nobody-registers-this")


def test_the_documentation_of_an_editable_install_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "elsewhere.py"
    file.write_text((PLUGINS / "headcount-example-importance" / "headcount_example_importance.py").read_text())

    class EditableFinder:
        """Knows one module that is on no path, as the finders of editable installs do."""

        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> Any:
            return importlib.util.spec_from_file_location(name, file) if name == "editable_plugin" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, EditableFinder])
    install_importances(tmp_path / "site", editable="editable_plugin:TopShare")
    assert IMPORTANCES.summary("editable") == IMPORTANCES.summary("top-share")
    assert "editable_plugin" not in sys.modules


def test_a_module_whose_class_annotates_its_info_has_the_documentation_of_the_class(tmp_path: Path) -> None:
    """`info: ClassVar[…] = …` declares info as `info = …` does, also where the entry point names the module alone."""
    install_importances(tmp_path / "site", annotated="headcount_example_annotated")
    (tmp_path / "site" / "headcount_example_annotated.py").write_text(
        '"""A module."""\nfrom typing import Any, ClassVar\n\nfrom headcount_example_importance import TopShare\n\n\n'
        'class Annotated(TopShare):\n    """A class."""\n\n    info: ClassVar[Any] = TopShare.info\n'
    )
    assert IMPORTANCES.get("annotated").__name__ == "Annotated" and IMPORTANCES.documentation("annotated") == "A class."


def test_a_class_without_info_is_refused() -> None:
    with pytest.raises(OptionError, match="Bare, registered as role 'bare', declares no info"):

        @ROLES.register("bare")
        @dataclass(frozen=True)
        class Bare(Role):
            """Bare: declares nothing."""

    assert "bare" not in ROLES.names()


def test_what_an_info_asks_for_is_checked() -> None:
    with pytest.raises(UnknownName, match=r"no need of an importance 'atention'. Did you mean 'attention'"):
        replace(plugin_class("importance").info, needs={"atention"})
    with pytest.raises(UnknownName, match=r"no annotation of a role 'trees'. Did you mean 'tree'"):
        replace(plugin_class("role").info, needs=frozenset({"trees"}))
    with pytest.raises(UnknownName, match="no attention of a role 'crossing'"):
        replace(plugin_class("role").info, attention=frozenset({"crossing"}))


def test_an_error_inside_a_method_names_its_line(broken: Callable[..., Any]) -> None:
    def of_block(_self: Any, observation: Any) -> torch.Tensor:
        return observation.special_keys[:, None]

    line = of_block.__code__.co_firstlineno + 1
    with pytest.raises(LawBroken, match=rf"TypeError: 'NoneType' object is not subscriptable \(test_plugins.py, line {line}\)"):
        check_importance(broken("importance", of_block=of_block))


def test_a_role_that_the_embedded_text_does_not_show_takes_a_text(broken: Callable[..., Any]) -> None:
    def sieve(_self: Any, view: Any) -> torch.Tensor:
        return view.ordinary & (view.queries.segments == 1)[:, :, None] & (view.keys.segments == 0)[:, None, :]

    role = broken("role", sieve=sieve)
    with pytest.raises(LawBroken, match=r"it is tested on a text that shows it: no query can attend .* Pass such a text"):
        check_role(role)
    check_role(role, [("the dog runs .", "the cat runs ."), ("the cat sees the dog .", "the dog runs .")])


def test_a_pruner_that_returns_no_choice_is_named(broken: Callable[..., Any]) -> None:
    def choose(_self: Any, context: Any) -> Any:
        return context.plan([0.0] * len(context.heads), "none")

    with pytest.raises(LawBroken, match=r"choose of broken must return a Choice.*; got Plan"):
        check_pruner(broken("pruner", choose=choose))
