"""How a function becomes a command: options in groups, and the session that it speaks by."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any, NamedTuple, get_type_hints

import typer

from headcount.app.console.options import Json, Quiet, Verbose
from headcount.app.console.session import open_session


class Verbosity(NamedTuple):
    """How much a command says, and in what form."""

    json: Json = False
    quiet: Quiet = False
    verbose: Verbose = False


def command(body: Callable[..., Any]) -> Callable[..., Any]:
    """The command of `body(session, …)`, which gets the session and what the options say.

    A parameter whose type is a NamedTuple is a group and stands for the options that are its fields. A group that asks for something (MODEL) leaves
    what it does not ask for to the end of the list, so that the options of the verb itself are read first.
    """
    hints = get_type_hints(body, include_extras=True)
    own = list(signature(body).parameters.values())[1:]
    groups = {one.name: hints[one.name] for one in own if hasattr(hints[one.name], "_fields")}

    def run(**values: Any) -> Any:
        context, verbosity = values.pop("context"), _gathered(Verbosity, values)
        values |= {name: _gathered(group, values) for name, group in groups.items()}
        with open_session(context, **verbosity._asdict()) as session:
            return body(session, **values)

    first, last = [Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)], []
    for one in own:
        if one.name not in groups:
            first.append(one.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[one.name]))
            continue
        options = _options(groups[one.name])
        asked = [option for option in options if option.default is Parameter.empty]
        first += asked or options
        last += [option for option in options if asked and option not in asked]
    options = [*first, *last, *_options(Verbosity)]
    run.__signature__ = Signature(options)  # pyright: ignore[reportFunctionMemberAccess]
    run.__annotations__ = {option.name: option.annotation for option in options}
    run.__doc__ = body.__doc__
    return run


def _options(group: Any) -> list[Parameter]:
    """The fields of a group as options."""
    hints, defaults = get_type_hints(group, include_extras=True), group._field_defaults
    return [Parameter(n, Parameter.KEYWORD_ONLY, default=defaults.get(n, Parameter.empty), annotation=hints[n]) for n in group._fields]


def _gathered(group: Any, values: dict[str, Any]) -> Any:
    """A group of options, taken out of all values."""
    return group(**{name: values.pop(name) for name in group._fields})
