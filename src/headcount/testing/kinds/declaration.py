"""What the laws of all kinds share: how a law is named and broken, and the laws of declarations, which hold for a method of any kind."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from inspect import getdoc
from pathlib import Path
from typing import Any

from torch import nn

from headcount.core.errors import HeadcountError
from headcount.core.options import Configurable, Option, options_of
from headcount.core.registry import Registry
from headcount.testing.fingerprint import ModelChanged, require_unchanged
from headcount.testing.laws import LawBroken

NO_SUCH_OPTION = "no_such_option"


class DeclarationLaw(StrEnum):
    """The laws of every method, whatever its kind."""

    TEXT_DESCRIBES_IT = "its text describes an object"
    IS_FROZEN_DATACLASS = "it is a frozen dataclass derived from the base class of its kind"
    FIELDS_ARE_OPTIONS = "every field is an option"
    OPTIONS_HAVE_HELP = "every option has a help text"
    HAS_DOCSTRING = "its class has a docstring"
    HAS_INFO = "its class declares the info of its kind"
    INFO_IS_COMPLETE = "its info is complete"
    DATA_GIVE_IT_BACK = "its plain data give it back"
    TEXT_GIVES_IT_BACK = "its text gives it back"
    WRONG_VALUES_ARE_REFUSED = "a wrong value is refused by the name of its option"
    UNKNOWN_OPTIONS_ARE_REFUSED = "an unknown option is refused by its name"


@dataclass(frozen=True, slots=True)
class KindOfMethod:
    """A kind of methods: registry, base class, class of `info`, how a text becomes an object, and the laws beside those of declarations."""

    registry: Registry
    base: type[Configurable]
    info: type
    parse: Callable[[str], Configurable]
    laws: type[StrEnum]


class Checks:
    """Raises LawBroken for the laws that one method breaks."""

    def __init__(self, method: str | Configurable, kind: KindOfMethod) -> None:
        self.method, self.kind = method, kind

    def broken(self, law: StrEnum, detail: str) -> LawBroken:
        """Returns the error that names method, law and what was measured."""
        try:
            text = str(self.method)
        except TypeError:  # a field that is no option has no text
            text = type(self.method).__qualname__
        return LawBroken(f"{self.kind.registry.singular} '{text}' breaks the law that {law}: {detail}")

    def require(self, holds: bool, law: StrEnum, detail: str) -> None:
        """Raises LawBroken unless the law holds."""
        if not holds:
            raise self.broken(law, detail)

    @contextmanager
    def require_success(self, law: StrEnum) -> Iterator[None]:
        """Turns any error inside into LawBroken, with the last line of the method's own module that it passed."""
        try:
            yield
        except LawBroken:
            raise
        except Exception as error:  # whatever a method's code raises under a law, the law does not hold
            file = getattr(sys.modules.get(type(self.method).__module__), "__file__", None)
            own_lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
            location = f" ({Path(file).name}, line {own_lines[-1]})" if file and own_lines else ""
            raise self.broken(law, f"{type(error).__name__}: {error}{location}") from error

    @contextmanager
    def require_model_unchanged(self, model: nn.Module, law: StrEnum, *, random_numbers: bool = True) -> Iterator[None]:
        """Raises LawBroken if the body changes the model or, where `random_numbers` is set, torch's random numbers."""
        try:
            with require_unchanged(model, str(self.method), random_numbers=random_numbers):
                yield
        except ModelChanged as error:
            raise self.broken(law, str(error)) from error

    def require_refusal(self, call: Callable[[], object], law: StrEnum, named: str, request: str) -> None:
        """Raises LawBroken unless a call raises a HeadcountError whose message names what is wrong."""
        try:
            call()
        except HeadcountError as error:
            self.require(named in str(error), law, f"the refusal of {request} does not name {named}: {error}")
        except Exception as error:  # a raw error tells users neither rule nor remedy
            raise self.broken(law, f"{request} raises {type(error).__name__}: {error}") from error
        else:
            raise self.broken(law, f"{request} is taken")


def parse_and_check_declaration(method: str | Configurable, kind: KindOfMethod) -> tuple[Any, Checks]:
    """Returns the object of a method and the checks for it; raises LawBroken unless it is declared as a method of its kind is."""
    if isinstance(method, str):
        try:
            method = kind.parse(method)
        except (HeadcountError, TypeError) as error:  # TypeError: a field that is no option, or an abstract method
            raise Checks(method, kind).broken(DeclarationLaw.TEXT_DESCRIBES_IT, str(error)) from error
    checks = Checks(method, kind)
    _check_class(method, checks)
    for variant in list_variants(method):
        _check_round_trips(variant, checks)
    _check_refusals(method, checks)
    return method, checks


def _check_class(method: Configurable, checks: Checks) -> None:
    """Checks that a class is a documented frozen dataclass with declared options and a complete info."""
    cls, kind = type(method), checks.kind
    parameters = getattr(cls, "__dataclass_params__", None)
    checks.require(
        isinstance(method, kind.base) and parameters is not None and parameters.frozen and "__dataclass_params__" in vars(cls),
        DeclarationLaw.IS_FROZEN_DATACLASS,
        f"{cls.__qualname__} is not; write @dataclass(frozen=True) above it and derive it from {kind.base.__name__}",
    )
    with checks.require_success(DeclarationLaw.FIELDS_ARE_OPTIONS):
        options = options_of(cls)
    for option in options:
        checks.require(bool(option.help.strip()), DeclarationLaw.OPTIONS_HAVE_HELP, f"{option.name} has none; write option(default, help)")
    text = getdoc(cls) or ""
    checks.require(
        bool(vars(cls).get("__doc__")) and not text.startswith(f"{cls.__name__}("),
        DeclarationLaw.HAS_DOCSTRING,
        f"{cls.__qualname__} has none; say in one sentence what it does, then formula and paper",
    )
    info = getattr(cls, "info", None)
    checks.require(isinstance(info, kind.info), DeclarationLaw.HAS_INFO, f"info is {info!r}; write info = {kind.info.__name__}(…)")
    for field in fields(info) if is_dataclass(info) else ():
        is_required = field.default is MISSING and field.default_factory is MISSING
        checks.require(not is_required or getattr(info, field.name) != "", DeclarationLaw.INFO_IS_COMPLETE, f"info.{field.name} is empty")


def list_variants(method: Configurable) -> list[Configurable]:
    """Returns a method, and for each of its options that takes one of a few values the method with each of these."""
    variants = [method]
    for option in options_of(type(method)):
        for value in option.choices or ((True, False) if option.is_flag else ()):
            try:
                variants.append(replace(method, **{option.name: value}))
            except HeadcountError:  # options that exclude each other
                continue
    return variants


def _check_round_trips(method: Configurable, checks: Checks) -> None:
    with checks.require_success(DeclarationLaw.DATA_GIVE_IT_BACK):
        data = json.loads(json.dumps(method.to_dict()))
        checks.require(type(method).from_dict(data) == method, DeclarationLaw.DATA_GIVE_IT_BACK, f"{data} does not")
    with checks.require_success(DeclarationLaw.TEXT_GIVES_IT_BACK):
        parsed = checks.kind.parse(str(method))
        checks.require(parsed == method and hash(parsed) == hash(method), DeclarationLaw.TEXT_GIVES_IT_BACK, f"'{method}' gives '{parsed}'")


def _list_wrong_values(option: Option) -> list[object]:
    """Returns values that an option must refuse: one of no type, and numbers just outside its range."""
    bounds = option.bounds
    outside = [
        *([] if bounds.minimum is None else [bounds.minimum - 1]),
        *([] if bounds.maximum is None else [bounds.maximum + 1]),
        *([] if bounds.above is None else [bounds.above]),
        *([] if bounds.below is None else [bounds.below]),
    ]
    return [object(), *outside]


def _check_refusals(method: Configurable, checks: Checks) -> None:
    for option in options_of(type(method)):
        for value in _list_wrong_values(option):

            def set_option(name: str = option.name, value: object = value) -> Configurable:
                return replace(method, **{name: value})

            request = f"{option.name}={'object()' if type(value) is object else repr(value)}"
            checks.require_refusal(set_option, DeclarationLaw.WRONG_VALUES_ARE_REFUSED, option.name, request)
    checks.require_refusal(
        lambda: type(method).from_text(f"({NO_SUCH_OPTION}=1)"),
        DeclarationLaw.UNKNOWN_OPTIONS_ARE_REFUSED,
        NO_SUCH_OPTION,
        f"{NO_SUCH_OPTION}=1",
    )
