"""The typer application: every module of this folder without a leading underscore is a command (`run`) or a group of commands (`build`).

A module is imported when its command runs; the list of commands reads their summaries from the files.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headcount import __version__
from headcount.app.console.command_list import print_command_list, read_summary
from headcount.app.console.session import ExitCode, write_to_stderr
from headcount.app.console.stop import INTERRUPTED, StopSignal
from headcount.core.errors import HeadcountError, OptionError, UnknownName, is_out_of_memory, unknown_name_error

FAILED, WRONG_USAGE = 1, 2
LIBRARIES = {*sys.stdlib_module_names, "datasets", "numpy", "safetensors", "tokenizers", "torch", "transformers"}
# typer carries its own copy of click in newer releases, so its exceptions are found through typer.
ClickException: Any = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")


class Commands(TyperGroup):
    """All commands, each imported when it is named."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names of all commands."""
        return list_command_names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Imports a command; None for an unknown name."""
        return import_command(cmd_name) if cmd_name in list_command_names() else None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints what all commands do, without importing them."""
        print_command_list(_root.__doc__ or "", {name: read_summary(_file_of(name)) for name in list_command_names()})


@cache
def list_command_names() -> list[str]:
    """Returns the names of all commands, from the files of this folder."""
    return sorted(file.stem.replace("_", "-") for file in Path(__file__).parent.glob("[!_]*.py"))


def _file_of(command_name: str) -> Path:
    return Path(__file__).with_name(command_name.replace("-", "_") + ".py")


@cache
def import_command(name: str) -> Any:
    """Imports the module of a command, and returns the command, or the group of commands."""
    module = importlib.import_module(f"headcount.app.cli.{_file_of(name).stem}")
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.callback()(_root)
    if hasattr(module, "build"):
        app.add_typer(module.build(), name=name)
    else:
        app.command(name)(module.run)
    group: Any = typer.main.get_command(app)
    return group.commands[name]


def _print_version_and_exit(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"headcount {__version__}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version_and_exit, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find, gate, score, cut, save and reload the attention heads of any transformers model.

    Results go to stdout, notes to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 terminated.
    """


def build() -> typer.Typer:
    """Returns the application with every command."""
    app = typer.Typer(name="headcount", cls=Commands, add_completion=False, rich_markup_mode="rich")
    app.callback()(_root)
    return app


def run(arguments: Sequence[str]) -> ExitCode:
    """Runs one command line and returns its exit code; a foreseen error is one line on stderr."""
    if not arguments:
        with redirect_stdout(sys.stderr):
            run(["--help"])
        return WRONG_USAGE
    try:
        if "--out=" in arguments or ("--out", "") in pairwise(arguments):
            raise typer.BadParameter("an empty text names no folder or file; name one, or . for the folder you are in", param_hint="--out")
        if (
            not arguments[0].startswith("-") and arguments[0] not in list_command_names()
        ):  # told without typer's parser, which takes long to import
            raise unknown_name_error("command", arguments[0], list_command_names())
        command = typer.main.get_command(build())
        code = command.main(args=list(arguments), prog_name="headcount", standalone_mode=False, obj=tuple(arguments))
    except typer.Abort:
        return INTERRUPTED
    except ClickException as error:
        _print_usage_error(error)
        return int(error.exit_code)
    except (HeadcountError, OSError) as error:
        write_to_stderr(f"error: {error}")
        return WRONG_USAGE if isinstance(error, UnknownName | OptionError) else FAILED
    except Exception as error:  # a defect of headcount or of a library
        if StopSignal.code:
            raise
        if is_out_of_memory(error):
            write_to_stderr(
                f"error: memory ran out: {error}. Give a smaller batch, fewer or shorter examples, or a machine with more memory"
            )
            return FAILED
        write_to_stderr(
            f"error: unexpected {type(error).__name__}: {error}{_format_error_location(error)}. "
            "Run it again with --verbose for the traceback; correct it where the file is yours, else report it."
        )
        return FAILED
    return code if isinstance(code, int) else 0


def _format_error_location(error: BaseException) -> str:
    """Returns the file and line of an error, ` (peak_norm.py, line 22)`: the last that belong to neither Python nor a large library."""
    locations = [
        f" ({Path(frame.f_code.co_filename).name}, line {line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in LIBRARIES
    ]
    return locations[-1] if locations else ""


def _print_usage_error(error: Any) -> None:
    context, cause = getattr(error, "ctx", None), error.__cause__
    if error.format_message():  # a group without a command shows its help instead
        inputs = (
            {str(failure["input"]) for failure in cause.errors()} if hasattr(cause, "errors") else set()
        )  # pydantic's messages leave the value out
        got = f"; got {min(inputs)!r}" if len(inputs) == 1 else ""
        write_to_stderr(f"error: {error.format_message()}{got}")
    if context is not None:
        write_to_stderr(f"See: {context.command_path} --help")
