"""Declared options: an importance, a role, a pruner, a task, an export target or a study is a frozen dataclass whose fields are its options.

Positional fields stand after the colon of its text, keyword-only fields in parentheses, so that text and Python are one grammar:

    dsp:straight(tau=2;cool=0.3)        DSP("straight", tau=2.0, cool=0.3)

Values are checked when the object is made; the command line, `headcount ls KIND NAME`, the reference pages and error messages are derived from the
same declaration. (pydantic would turn True into 1 and name no remedy.)
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from itertools import product
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from headcount.core.errors import OptionError, unknown_name_error

_DECLARATION = "headcount option"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range of a number: inclusive (`minimum`, `maximum`) or exclusive (`above`, `below`) limits."""

    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None

    def contains(self, value: float) -> bool:
        """Whether a number lies within the limits."""
        return (
            (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
            and (self.maximum is None or value <= self.maximum)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        words = {"of at least": self.minimum, "above": self.above, "of at most": self.maximum, "below": self.below}
        return " and ".join(f"{word} {limit:g}" for word, limit in words.items() if limit is not None)


@dataclass(frozen=True, slots=True)
class Option:
    """A declared option: its name, type, default (MISSING if it must be given), range, and what it does."""

    name: str
    type: Any
    default: Any
    help: str
    bounds: Bounds
    is_positional: bool
    is_read_from_text: bool = False
    """Whether the option has a text too, in which the values of a list are joined."""

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values of an option that takes one of a few."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def is_list(self) -> bool:
        """Whether the option takes several values."""
        return any(get_origin(member) is tuple for member in union_members(self.type))

    @property
    def is_flag(self) -> bool:
        """Whether the option is true or false."""
        return bool in union_members(self.type)

    @property
    def plain_type(self) -> Any:
        """bool, int or float for an option with a single value of that type, or none; str for all others, whose values are read from text."""
        members = [member for member in union_members(self.type) if member is not type(None)]
        return members[0] if len(members) == 1 and members[0] in (bool, int, float) else str

    @property
    def type_label(self) -> str:
        """The type in words: `a float above 0`, `one of joint, straight`."""
        if self.choices:
            return f"one of {', '.join(format_value(choice) for choice in self.choices)}"
        name = _type_name(self.type, " joined by '+'" if self.is_read_from_text else "")
        article = "" if name.startswith("true or") else "an" if name.startswith(("int", "a")) else "a"
        return " ".join(filter(None, [article, name, str(self.bounds)]))


def option(
    default: Any = MISSING,
    help: str = "",
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
) -> Any:
    """Declares a field of a `Configurable` as an option with its help text and, for numbers, its range."""
    return field(default=default, metadata={_DECLARATION: (help, Bounds(minimum, above, maximum, below))})


@dataclass(frozen=True)
class Configurable:
    """Base of everything that is described by a name and declared options. Its docstring is its documentation."""

    name: ClassVar[str] = ""
    """The registered name: that of the file, with hyphens, unless a registry says otherwise."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = cls.__module__.rpartition(".")[2].replace("_", "-")

    def __post_init__(self) -> None:
        convert_to_declared_types(self, options_of(type(self)), self.name)

    def __str__(self) -> str:
        """Returns the text that makes the object: the options that differ from their defaults."""
        declared = options_of(type(self))
        changed = {option.name: getattr(self, option.name) for option in declared if getattr(self, option.name) != option.default}
        positional = [option.name for option in declared if option.is_positional]
        n_positional = max((number for number, name in enumerate(positional, 1) if name in changed), default=0)
        text = ":".join([self.name, *(format_value(getattr(self, name)) for name in positional[:n_positional])])
        keywords = [f"{name}={format_value(value)}" for name, value in changed.items() if name not in positional]
        return f"{text}({';'.join(keywords)})" if keywords else text

    def to_dict(self) -> dict[str, Any]:
        """Returns the name and every option as plain data, defaults included, so that a changed default never passes for an old result."""
        values = {option.name: getattr(self, option.name) for option in options_of(type(self))}
        return {"name": self.name, **{name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the object that `to_dict` described."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if name != "name"})

    @classmethod
    def from_text(cls, arguments: str) -> Self:
        """Returns the object for the text after its name: `:straight(tau=2;cool=0.3)`.

        Raises:
            OptionError: the text does not follow the grammar, or a value has the wrong type or is out of range.
            UnknownName: there is no such option, or no such choice.
        """
        before, parenthesis, after = arguments.strip().partition("(")
        if parenthesis and not after.endswith(")"):
            raise OptionError(
                f"options of {cls.name} stand in parentheses, as in {cls.name}(name=value;name=value); got '{cls.name}{arguments}'"
            )
        declared = {option.name: option for option in options_of(cls)}
        positional = [name for name, option in declared.items() if option.is_positional]
        words = [word.strip() for word in before.split(":")[1:]]
        if len(words) > len(positional):
            extra = ":".join(words[len(positional) :])
            no_variants = f"{cls.name} has no variants, so '{cls.name}:{extra}' names nothing; write {cls.name}"
            raise OptionError(f"{cls.name} takes no '{extra}'" if positional else no_variants)
        values = dict(zip(positional, words, strict=False))
        for pair in filter(None, map(str.strip, _split_options(after.removesuffix(")")))):
            key, equals, value = (part.strip() for part in pair.partition("="))
            if not equals:
                raise OptionError(f"an option of {cls.name} is name=value; got '{pair}'")
            if key not in declared:
                raise unknown_name_error(f"option of {cls.name}", key, declared)
            if key in values:
                raise OptionError(f"option {key} of {cls.name} is given twice, as '{values[key]}' and '{value}'; leave one out")
            values[key] = value
        missing = next((name for name, option in declared.items() if option.default is MISSING and name not in values), None)
        if missing is not None:
            example = f"{cls.name}:{missing.upper()}" if missing in positional else f"{cls.name}({missing}=…)"
            raise OptionError(f"{cls.name} needs its {missing} ({declared[missing].help}): write {example}")
        return cls(**{name: parse_value(declared[name], text, cls.name) for name, text in values.items()})

    def with_texts(self, texts: Mapping[str, str]) -> Self:
        """Returns a copy with some options read from text, each by its name.

        Raises:
            OptionError: a value has the wrong type or is out of range.
            UnknownName: there is no such option, or no such choice.
        """
        declared = {option.name: option for option in options_of(type(self))}
        for name in texts:
            if name not in declared:
                raise unknown_name_error(f"option of {self.name}", name, declared)
        return replace(self, **{name: parse_value(declared[name], text, self.name) for name, text in texts.items()})


def convert_to_declared_types(instance: object, declared: Iterable[Option], owner_name: str) -> None:
    """Replaces the values of declared fields of a frozen dataclass by the same values in their declared types, so that equal ones are stored alike.

    Raises:
        OptionError: a value has the wrong type or is out of range.
        UnknownName: a value is none of the choices of its field.
    """
    for item in declared:
        object.__setattr__(instance, item.name, _to_declared_type(item, getattr(instance, item.name), owner_name))


def expand_alternatives(text: str) -> list[str]:
    """Returns the texts that a text with alternatives stands for: `dsp(tau=1|10;rate=0.1|0.5)` is a grid of four.

    Alternatives within parentheses of their own, of an option that is a text itself, are left as they are.
    """
    name, parenthesis, options = text.strip().partition("(")
    if "|" not in options or not options.endswith(")"):
        return [text]
    choices = []
    for pair in _split_options(options.removesuffix(")")):
        key, equals, value = pair.partition("=")
        choices.append([f"{key}{equals}{choice}" for choice in _split_options(value, "|")])
    return [f"{name}{parenthesis}{';'.join(pairs)})" for pairs in product(*choices)]


def _split_options(text: str, separator: str = ";") -> list[str]:
    """Returns the parts of a text between separators; those within parentheses, of an option that is a text itself, divide nothing."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == separator and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


@cache
def options_of(cls: type) -> tuple[Option, ...]:
    """Returns the declared options of a dataclass, in order."""
    hints, declared, is_read_from_text = get_type_hints(cls), [], issubclass(cls, Configurable)
    for item in fields(cls):
        if _DECLARATION not in item.metadata:
            raise TypeError(f"field {item.name} of {cls.__name__} is no option; declare it with option(default, help)")
        help_text, bounds = item.metadata[_DECLARATION]
        declared.append(Option(item.name, hints[item.name], item.default, help_text, bounds, not item.kw_only, is_read_from_text))
    return tuple(declared)


def describe_options(cls: type[Configurable]) -> list[dict[str, str]]:
    """Returns a row for every option of a class, for tables: its name, type, default and what it does."""
    return [
        {
            "option": f":{declared.name}" if declared.is_positional else declared.name,
            "type": declared.type_label,
            "default": "must be given" if declared.default is MISSING else format_value(declared.default),
            "what": declared.help,
        }
        for declared in options_of(cls)
    ]


def format_value(value: Any) -> str:
    """Returns a value as the text of an option, in as few characters as give it back."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return "+".join(map(format_value, value)) if isinstance(value, tuple) else str(value)


def _type_name(hint: Any, joining: str = "") -> str:
    members = union_members(hint)
    if len(members) > 1:
        names = ["none" if member is type(None) else _type_name(member, joining) for member in members]
        return f"{', '.join(names[:-1])} or {names[-1]}"
    if get_origin(hint) is tuple:
        return f"list of {_type_name(get_args(hint)[0])}{joining}"
    if get_origin(hint) is Literal:
        return "/".join(map(str, get_args(hint)))
    if get_origin(hint) in (Iterable, Sequence):
        return f"list of {_type_name(get_args(hint)[0])}"
    return {bool: "true or false", str: "text", Path: "path", Mapping: "mapping", Callable: "function"}.get(
        get_origin(hint) or hint, getattr(hint, "__name__", str(hint))
    )


def union_members(hint: Any) -> tuple[Any, ...]:
    """Returns the members of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def parse_value(declared: Option, text: str | Sequence[str], owner_name: str) -> Any:
    """Returns the value of an option of `owner_name` for its text, or for the texts of the entries of a list; making the object checks it."""
    members = union_members(declared.type)
    if not isinstance(text, str):
        entry_type = next(get_args(member)[0] for member in members if get_origin(member) is tuple)
        return tuple(_parse_or_return_text(entry_type, entry) for entry in text)
    if type(None) in members and text == "none":
        return None
    for member in members:
        if get_origin(member) is tuple:
            return tuple(_parse_or_return_text(get_args(member)[0], word) for word in text.split("+") if word)
        value = _parse_or_return_text(member, text)
        if not isinstance(value, str) or member is str or get_origin(member) is Literal:
            return value
    raise OptionError(f"option {declared.name} of {owner_name} must be {declared.type_label}; got {text!r}")


def _parse_or_return_text(hint: Any, text: str) -> Any:
    """Reads one value; text that is none of that type comes back as it is."""
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if len(members := union_members(hint)) > 1:
        values = [_parse_or_return_text(member, text) for member in members]
        return next((value for value in values if not isinstance(value, str)), text)
    if hint is bool:
        return words.get(text.lower(), text)
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            return text
    return text


def _to_declared_type(declared: Option, value: Any, owner_name: str) -> Any:
    """Returns the value in the declared type; raises OptionError or UnknownName where it does not fit."""
    members = union_members(declared.type)
    if value is None and type(None) in members:
        return None
    number: Any = value
    for member in members:
        if get_origin(member) is tuple and isinstance(value, tuple | list):
            if all(_is_of_type(get_args(member)[0], entry, declared.bounds) for entry in value):
                return tuple(value)
        elif get_origin(member) is Literal and value in get_args(member):
            return value
        elif get_origin(member) is None and _is_of_type(member, value, declared.bounds):
            return member(number) if member in (int, float) else value
    if declared.choices:
        raise unknown_name_error(f"{declared.name} of {owner_name}", format_value(value), map(format_value, declared.choices))
    raise OptionError(f"option {declared.name} of {owner_name} must be {declared.type_label}; got {value!r}")


def _is_of_type(plain_type: Any, value: Any, bounds: Bounds) -> bool:
    """Whether a value is of a plain type or a union of them, numbers within their bounds. True is no number, and an int is a float."""
    if len(members := union_members(plain_type)) > 1:
        return any(_is_of_type(member, value, bounds) for member in members)
    if plain_type not in (int, float):
        return isinstance(value, plain_type)
    is_number = isinstance(value, Integral if plain_type is int else Real) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and bounds.contains(float(value))
