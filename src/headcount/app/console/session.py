"""Where the words of a verb go: results to stdout, as a table or as JSON; notes, progress and warnings to stderr."""

from __future__ import annotations

import json as jsonlib
import os
import shlex
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import typer

from headcount.app.console.progress import Pulse, bar

PACKAGE = Path(__file__).resolve().parents[2]
WIDE = 400


def plain(value: object) -> str:
    """A value as text in which nothing steers the terminal; names come from files that others wrote."""
    return "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in str(value))


def complain(text: str) -> None:
    """Writes a line to stderr."""
    print(plain(text), file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Session:
    """The streams of one run of a verb."""

    results: TextIO
    arguments: tuple[str, ...]
    json: bool
    quiet: bool
    verbose: bool
    pulse: Pulse

    @property
    def command(self) -> str:
        """The command line that is running."""
        return shlex.join(["headcount", *self.arguments])

    @property
    def leads(self) -> bool:
        """Whether this process speaks and writes for all that a launcher such as torchrun started."""
        return os.environ.get("RANK", "0") == "0"

    @property
    def width(self) -> int:
        """The columns that a line of the result may fill; no limit but a generous one where no terminal reads it."""
        return shutil.get_terminal_size().columns if self.results.isatty() else WIDE

    def note(self, text: str) -> None:
        """Says on stderr what is being done or was decided."""
        if not self.quiet:
            complain(text)

    def doing(self, what: str) -> None:
        """Names the work that begins now; it is said if that takes long."""
        self.pulse.begin(what)

    def watch(self, what: str, unit: str = "examples") -> Callable[[int, int | None], None]:
        """Names the work that begins now; what to call with (done, all), for callers that tell of many in turn."""
        self.pulse.begin(what, unit)
        return self.pulse.advance

    @contextmanager
    def progress(self, what: str, unit: str = "examples") -> Iterator[Callable[[int, int | None], None]]:
        """Shows how far a piece of work is: a bar on a terminal, else a line now and then. Yields what to call with (done, all)."""
        self.pulse.begin(what, unit)
        if self.quiet or not sys.stderr.isatty():
            yield self.pulse.advance
        else:
            self.pulse.paused = True
            with bar(what) as advance:
                yield advance
            self.pulse.paused = False
        self.pulse.begin(f"after {what}")

    def next(self, *words: str | Path) -> None:
        """Says on stderr which command to type next."""
        self.note(f"next: {shlex.join(['headcount', *map(str, words)])}")

    def line(self, text: str) -> None:
        """Writes a line of the result at once, unless the result is JSON."""
        if not self.json:
            print(plain(text), file=self.results, flush=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> None:
        """Writes a table, unless the result is JSON; `right` names the columns of numbers. Columns without content are left out."""
        if self.json:
            return
        filled = [i for i in range(len(columns)) if not rows or any(str(row[i]) for row in rows)]
        columns, rows = [columns[i] for i in filled], [[row[i] for i in filled] for row in rows]
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        for column in columns:
            table.add_column(column, justify="right" if column in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(plain(cell)) for cell in row))
        Console(file=self.results, width=self.width, highlight=False, markup=False).print(table)
        print(file=self.results)

    def result(self, content: Mapping[str, Any]) -> None:
        """Writes the whole result, if it is to be JSON."""
        if self.json:
            print(jsonlib.dumps(content, indent=2, allow_nan=False), file=self.results)


def _nothing(_text: str) -> None:
    pass


def _warn_on(verbose: bool, quiet: bool) -> Any:
    def show(message: Warning | str, _category: type[Warning], filename: str, *_: object, **__: object) -> None:
        ours = Path(filename).resolve().is_relative_to(PACKAGE)
        if verbose or (ours and not quiet):
            complain(f"warning: {message}")

    return show


@contextmanager
def open_session(context: typer.Context, *, json: bool, quiet: bool, verbose: bool) -> Iterator[Session]:
    """The streams of a verb while it runs; what libraries print meanwhile goes to stderr."""
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose exclude each other", context)
    with ExitStack() as stack:
        leads = os.environ.get("RANK", "0") == "0"
        results = sys.stdout if leads else stack.enter_context(Path(os.devnull).open("w"))
        silent = quiet or not leads
        said = Session(results, tuple(context.obj or ()), json, silent, verbose, Pulse(_nothing if silent else complain))
        stack.enter_context(said.pulse.beating())
        stack.enter_context(redirect_stdout(sys.stderr))
        stack.enter_context(warnings.catch_warnings())
        warnings.showwarning = _warn_on(verbose, quiet)
        try:
            yield said
        except Exception:
            if verbose:
                traceback.print_exc()
            raise
        said.results.flush()
