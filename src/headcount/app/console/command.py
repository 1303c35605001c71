"""The decorator that makes a function a command: it expands groups of options and opens the session."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, getdoc, signature
from typing import Any, get_type_hints

import typer

from headcount.app.console.options import Json, Quiet, Verbose
from headcount.app.console.session import open_session

VERBOSITY = [
    Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
    for name, annotation in (("json", Json), ("quiet", Quiet), ("verbose", Verbose))
]
"""The options of every command for the form and amount of its output."""


def command(body: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the typer command of a function `body(session, …)`.

    A parameter whose type is a NamedTuple is a group: its fields are options. The optional fields of a group with a required one (MODEL) come
    last in the help, after the options of the command itself.
    """
    hints = get_type_hints(body, include_extras=True)
    parameters = list(signature(body).parameters.values())[1:]
    groups = {parameter.name: hints[parameter.name] for parameter in parameters if hasattr(hints[parameter.name], "_fields")}

    def run_in_session(*, context: typer.Context, json: bool, quiet: bool, verbose: bool, **values: Any) -> Any:
        values |= {name: group(**{field: values.pop(field) for field in group._fields}) for name, group in groups.items()}
        with open_session(context, json=json, quiet=quiet, verbose=verbose) as session:
            return body(session, **values)

    first, last = [Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)], []
    for parameter in parameters:
        if parameter.name not in groups:
            first.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[parameter.name]))
            continue
        options = _list_group_fields_as_parameters(groups[parameter.name])
        required = [option for option in options if option.default is Parameter.empty]
        first += required or options
        last += [option for option in options if required and option not in required]
    options = [*first, *last, *VERBOSITY]
    run_in_session.__signature__ = Signature(options)  # pyright: ignore[reportFunctionMemberAccess]
    run_in_session.__annotations__ = {option.name: option.annotation for option in options}
    run_in_session.__doc__ = "\n\n".join(
        paragraph if paragraph.startswith(" ") else " ".join(paragraph.split()) for paragraph in (getdoc(body) or "").split("\n\n")
    )  # lines are broken to the width of the terminal; formulas, which are indented, stay as they are
    return run_in_session


def _list_group_fields_as_parameters(options_class: Any) -> list[Parameter]:
    """Returns the fields of a group as options."""
    hints, defaults = get_type_hints(options_class, include_extras=True), options_class._field_defaults
    return [
        Parameter(n, Parameter.KEYWORD_ONLY, default=defaults.get(n, Parameter.empty), annotation=hints[n]) for n in options_class._fields
    ]
