"""The typer application: every module of this folder without a leading underscore is a command (`run`) or a group of commands (`build`)."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headcount import __version__
from headcount.app.console.session import ExitCode, write_to_stderr
from headcount.app.console.stop import INTERRUPTED, StopSignal
from headcount.core.errors import HeadcountError, OptionError, UnknownName, is_out_of_memory, unknown_name_error

FAILED, WRONG_USAGE = 1, 2
LIBRARIES = {*sys.stdlib_module_names, "datasets", "numpy", "safetensors", "tokenizers", "torch", "transformers"}
# typer carries its own copy of click in newer releases, so its exceptions are found through typer.
ClickException: Any = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")


class Commands(TyperGroup):
    """All commands; an unknown name raises UnknownName with the nearest known one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the command named by the first argument."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise unknown_name_error("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


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
    for file in sorted(info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)]) if not info.name.startswith("_")):
        module, name = importlib.import_module(f"headcount.app.cli.{file}"), file.replace("_", "-")
        if hasattr(module, "build"):
            app.add_typer(module.build(), name=name)
        else:
            app.command(name)(module.run)
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
