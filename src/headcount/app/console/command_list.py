"""The list of all commands, for `headcount --help`: drawn like the help of one command, from summaries that are read without importing anything."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table

OPTIONS = {"--version": "Print the version.", "--help": "Show this message and exit."}


def read_summary(file: Path) -> str:
    """Returns the first paragraph of what a command's file says of it: the docstring of `run`, or the text `SUMMARY` of a group of commands."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == "run":
            return " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SUMMARY":
            return str(ast.literal_eval(node.value))
    raise AssertionError(f"{file.name} has neither a function run with a docstring nor a text SUMMARY")


def print_command_list(description: str, summaries: Mapping[str, str]) -> None:
    """Prints how the program is called, what it is for, its options and its commands."""
    console = Console(highlight=False)
    console.print(Padding("[yellow]Usage:[/] [bold]headcount [OPTIONS] COMMAND [ARGS]...[/]", 1))
    for paragraph in description.split("\n\n"):
        console.print(Padding(" ".join(paragraph.split()), (0, 1, 1, 1)))
    for title, rows in (("Options", OPTIONS), ("Commands", summaries)):
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold cyan", no_wrap=True)
        for name, summary in rows.items():
            table.add_row(name, summary)
        console.print(Panel(table, title=title, title_align="left", border_style="dim"))
