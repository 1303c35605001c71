"""Commands made from declarations: a group with one command for everything that a registry holds, whose options are its declared ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from inspect import Parameter, Signature, getdoc
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from headcount.app.console.command import command
from headcount.app.console.pruning import split_methods
from headcount.app.console.session import Session
from headcount.core.errors import OptionError, unknown_name_error
from headcount.core.options import Configurable, Option, format_value, options_of, parse_value
from headcount.core.registry import Registry


class InputParameter(NamedTuple):
    """A parameter of a command beside its declared options; `default` is `Parameter.empty` if it must be given."""

    name: str
    annotation: Any
    default: Any


def build_group(group_name: str, registry: Registry, summary: str, build_command: Callable[[str], Any]) -> typer.Typer:
    """Returns a group of commands, one for every registered name; its help reads their summaries without importing them."""

    class Group(TyperGroup):
        """The registered names as commands."""

        def list_commands(self, ctx: Any) -> list[str]:
            """Returns every registered name."""
            return registry.names()

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            """Returns a command without options, for the list of commands; None for an unknown name."""
            return TyperCommand(cmd_name, help=registry.summary(cmd_name)) if cmd_name in registry.names() else None

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            """Returns the command named by the first argument with all its options."""
            first, *following = args
            if first.startswith("-"):
                return super().resolve_command(ctx, args)
            if first not in registry.names():
                raise unknown_name_error(registry.singular, first, registry.names())
            return first, build_command(first), following

    app = typer.Typer(name=group_name, cls=Group, add_completion=False, rich_markup_mode="rich", no_args_is_help=True)
    app.callback(help=summary)(lambda: None)
    return app


def build_declared_command(
    command_name: str,
    declaring_class: type[Configurable],
    inputs: Sequence[InputParameter],
    run: Callable[[Session, Any, Mapping[str, Any]], None],
) -> Any:
    """Returns a command that makes an object of `declaring_class` from its declared options and calls `run(session, object, values of the inputs)`.

    Args:
        command_name: The name of the command.
        declaring_class: The class whose declared options are options of the command.
        inputs: Further parameters.
        run: Does the work.
    """
    declared = options_of(declaring_class)
    further = [Parameter(entry.name, Parameter.KEYWORD_ONLY, default=entry.default, annotation=entry.annotation) for entry in inputs]
    required = [parameter for parameter in further if parameter.default is Parameter.empty]
    parameters = [*required, *map(build_option_parameter, declared), *(parameter for parameter in further if parameter not in required)]

    def run_with_declared_options(session: Session, **values: Any) -> None:
        options = {option.name: parse_option_or_missing(option, values.pop(option.name), command_name) for option in declared}
        try:
            run(session, declaring_class(**{option: value for option, value in options.items() if value is not MISSING}), values)
        except OptionError as error:
            raise typer.BadParameter(str(error)) from error

    run_with_declared_options.__signature__ = Signature([Parameter("session", Parameter.POSITIONAL_OR_KEYWORD), *parameters])  # pyright: ignore[reportFunctionMemberAccess]
    run_with_declared_options.__annotations__ = {"session": Session, **{parameter.name: parameter.annotation for parameter in parameters}}
    run_with_declared_options.__doc__ = getdoc(declaring_class)
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(command_name)(command(run_with_declared_options))
    return typer.main.get_command(app)


def build_option_parameter(option: Option) -> Parameter:
    """Returns the command-line argument or option of a declared option; values are read as text and checked by the object that declares it."""
    is_required = option.default is MISSING
    plain: Any = bool if option.is_flag else list[str] if option.is_list else str
    word = option.name.replace("_", "-")
    noun = word.rpartition("-")[2].upper()
    singular = f"{noun.removesuffix('IES')}Y" if noun.endswith("IES") else noun.removesuffix("S")
    metavar = "|".join(map(str, option.choices)) or (f"{singular},…" if option.is_list else noun)
    if option.is_positional:
        metavar = metavar.replace(",…", "…")
        information: Any = typer.Argument(metavar=metavar if is_required else f"[{metavar}]", help=f"{option.help}.", show_default=False)
    else:
        default = (
            "" if is_required or option.default in (None, (), False) else f" (default: {format_value(option.default).replace('+', ',')})"
        )
        has_opposite = option.is_flag and option.default is not False
        flag = f"--{word}/--no-{word}" if has_opposite else f"--{word}"
        information = typer.Option(flag, metavar=None if option.is_flag else metavar, help=f"{option.help}{default}.", show_default=False)
    hint = Annotated[plain if is_required else plain | None, information]
    return Parameter(option.name, Parameter.KEYWORD_ONLY, default=Parameter.empty if is_required else None, annotation=hint)


def parse_option_or_missing(option: Option, command_line_value: Any, owner_name: str) -> Any:
    """Returns the value of a declared option for that of the command line, MISSING if that has none; `owner_name` is the name of what declares it.

    A list is a repeated option or a text with commas; commas of NAME=VALUE and within parentheses divide nothing.
    """
    if command_line_value is None or command_line_value == []:
        return MISSING
    if isinstance(command_line_value, list) and not option.is_positional:
        command_line_value = [
            part for text in command_line_value for part in ([text] if "=" in text.partition("(")[0] else split_methods(text))
        ]
    return command_line_value if isinstance(command_line_value, bool) else parse_value(option, command_line_value, owner_name)
