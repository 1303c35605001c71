"""`headcount study`: the papers' experiments; every module of `headcount.studies` is one, its `run` the command."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from headcount.core.errors import unknown
from headcount.core.registry import STUDIES


class Studies(TyperGroup):
    """The studies, with the nearest known one for a study that does not exist."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The study named by the first argument."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise unknown("study", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


def build() -> typer.Typer:
    """The group with every study."""
    app = typer.Typer(name="study", cls=Studies, add_completion=False, rich_markup_mode="rich", no_args_is_help=True)
    app.callback()(group)
    for name in STUDIES.names():
        app.command(name)(STUDIES.module(name).run)
    return app


def group() -> None:
    """The papers' experiments as commands; each names its own arguments."""
