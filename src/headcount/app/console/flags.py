"""Flags in place of Python arguments: the core's messages name arguments as `allow_pickle=True`, a command line has `--allow-pickle`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ARGUMENT = re.compile(r"(?<![\w.])([a-z][a-z_]*)=('[^']*'|\"[^\"]*\"|[\w.%+-]*[\w%])")


@dataclass(frozen=True, slots=True)
class Flag:
    """How a command line sets an argument: a flag with a value, or a switch (`--repair`), which may have an opposite (`--no-repair`)."""

    name: str
    is_switch: bool = False
    opposite: str | None = None


def flags_by_argument(click_parameters: Sequence[Any]) -> dict[str, Flag]:
    """Returns the flags of a click command by the Python argument that each sets."""
    flags = {}
    for parameter in click_parameters:
        names = [name for name in parameter.opts if name.startswith("--")]
        if names:
            opposite = next(iter(parameter.secondary_opts), None)
            flag = Flag(names[0], getattr(parameter, "is_flag", False), opposite)
            flags |= {names[0][2:].replace("-", "_"): flag, parameter.name: flag}
    return flags


def replace_arguments_by_flags(text: str, flags: Mapping[str, Flag]) -> str:
    """Returns a message in which the arguments that a command has are its flags: `max_length=64, truncate=True` gives `--max-length 64, --truncate`.

    Arguments that the command does not have keep their Python form.
    """

    def replace_by_flag(match: re.Match[str]) -> str:
        flag, value = flags.get(match[1]), match[2].strip("'\"")
        if flag is None:
            return match[0]
        if flag.is_switch:
            return {"True": flag.name, "False": flag.opposite}.get(value) or match[0]
        return f"{flag.name} {value}"

    return ARGUMENT.sub(replace_by_flag, text)
