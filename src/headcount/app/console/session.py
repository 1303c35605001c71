"""The output of a command: results on stdout, as a table or as JSON; notes, progress and warnings on stderr."""

from __future__ import annotations

import json as jsonlib
import os
import shlex
import shutil
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import typer

from headcount.app.console.flags import flags_by_argument, replace_arguments_by_flags
from headcount.app.console.progress import Pulse
from headcount.core.errors import HeadcountError
from headcount.core.progress import Progress, hide_inner_progress, terminal_bar

PACKAGE = Path(__file__).resolve().parents[2]
WIDE = 400

ExitCode = int
"""The exit code of a command: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 terminated."""


def replace_control_characters_but_newlines(value: object) -> str:
    """Returns a value as text without control characters: names may come from files that others wrote."""
    return "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in str(value))


def write_to_stderr(text: str) -> None:
    """Writes a line to stderr."""
    print(replace_control_characters_but_newlines(text), file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Session:
    """The output streams and the verbosity of one command."""

    results: TextIO
    arguments: tuple[str, ...]
    json: bool
    quiet: bool
    verbose: bool
    pulse: Pulse
    written_once: set[str] = field(default_factory=set)
    """The notes that `write_note_once` does not repeat."""

    @property
    def command(self) -> str:
        """The command line that is running."""
        return shlex.join(["headcount", *self.arguments])

    @property
    def leads_processes(self) -> bool:
        """Whether this process writes output and files on behalf of all that a launcher such as torchrun started."""
        return os.environ.get("RANK", "0") == "0"

    @property
    def table_width(self) -> int:
        """The columns of the terminal, or a generous number where the result is not written to a terminal."""
        return shutil.get_terminal_size().columns if self.results.isatty() else WIDE

    def write_note(self, text: str) -> None:
        """Writes a line to stderr unless the command is quiet."""
        if not self.quiet:
            write_to_stderr(text)

    def write_note_once(self, text: str) -> None:
        """Writes a line to stderr unless the command is quiet, or has written the same line by this function before."""
        if text not in self.written_once:
            self.written_once.add(text)
            self.write_note(text)

    def begin_work(self, work: str) -> None:
        """Names the work that begins now; it is shown if it takes long."""
        self.pulse.begin(work)

    def begin_counted_work(self, work: str, unit: str = "examples") -> Progress:
        """Names the work that begins now; returns a function to call with (done, total)."""
        self.pulse.begin(work, unit)
        return self.pulse.set_progress

    @contextmanager
    def progress(self, work: str, unit: str = "examples") -> Iterator[Progress]:
        """Shows progress, as a bar on a terminal, else as a line now and then. Yields a function to call with (done, total)."""
        self.pulse.begin(work, unit)
        if self.quiet or not sys.stderr.isatty():
            yield self.pulse.set_progress
        else:
            self.pulse.paused = True
            with terminal_bar(work, unit) as advance:
                yield advance
            self.pulse.paused = False
        self.pulse.begin(f"after {work}")

    def suggest_next(self, *command_words: str | Path) -> None:
        """Writes the next command to type to stderr."""
        self.write_note(f"next: {shlex.join(['headcount', *map(str, command_words)])}")

    def write_line(self, text: str) -> None:
        """Writes a line of the result at once, unless the result is JSON."""
        if not self.json:
            print(replace_control_characters_but_newlines(text), file=self.results, flush=True)

    def write_table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, right_aligned: Sequence[str] = ()) -> None:
        """Writes a table, unless the result is JSON; `right_aligned` names the columns of numbers. Columns without content are left out."""
        if self.json:
            return
        used = [i for i in range(len(columns)) if not rows or any(str(row[i]) for row in rows)]
        columns, rows = [columns[i] for i in used], [[row[i] for i in used] for row in rows]
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        for column in columns:
            table.add_column(column, justify="right" if column in right_aligned else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(replace_control_characters_but_newlines(cell)) for cell in row))
        Console(file=self.results, width=self.table_width, highlight=False, markup=False).print(table)
        print(file=self.results)

    def write_json(self, content: Mapping[str, Any]) -> None:
        """Writes the result as JSON, if that was asked for."""
        if self.json:
            print(jsonlib.dumps(content, indent=2, allow_nan=False), file=self.results)


@contextmanager
def open_session(context: typer.Context, *, json: bool, quiet: bool, verbose: bool) -> Iterator[Session]:
    """Yields the session of a command; what libraries print meanwhile goes to stderr."""
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose exclude each other", context)
    with ExitStack() as stack:
        leads = os.environ.get("RANK", "0") == "0"
        results = sys.stdout if leads else stack.enter_context(Path(os.devnull).open("w"))
        silent = quiet or not leads
        session = Session(
            results, tuple(context.obj or ()), json, silent, verbose, Pulse((lambda _text: None) if silent else write_to_stderr)
        )
        stack.enter_context(session.pulse.reporting_in_thread())
        stack.enter_context(hide_inner_progress())
        stack.enter_context(redirect_stdout(sys.stderr))
        stack.enter_context(warnings.catch_warnings())
        flags = flags_by_argument(context.command.params)

        def show_warning(message: Warning | str, _category: type[Warning], filename: str, *_position: object) -> None:
            if verbose or (not quiet and Path(filename).resolve().is_relative_to(PACKAGE)):
                write_to_stderr(f"warning: {replace_arguments_by_flags(str(message), flags)}")

        warnings.showwarning = show_warning
        try:
            yield session
        except Exception as error:
            if verbose:
                traceback.print_exc()
            if isinstance(error, HeadcountError) and error.args:
                error.args = (replace_arguments_by_flags(str(error), flags), *error.args[1:])
            raise
        session.results.flush()
