"""`headcount ls`: what there is to name on a command line. Lists import no torch; explaining one thing imports its file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from headcount.app.console.command import command
from headcount.app.console.session import Session
from headcount.core.errors import OptionError, unknown
from headcount.core.options import describe_options
from headcount.core.registry import KINDS, Registry
from headcount.models.archs.families import FAMILIES, Family

Kind = Annotated[str | None, typer.Argument(metavar="[KIND]", help="The kind to list; without it, all kinds.", show_default=False)]

Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="The name to explain: its definition and its options.", show_default=False)
]


def _family(name: str, family: Family) -> dict[str, Any]:
    facts = {
        "projections": "by configuration" if callable(family.fusion) else family.fusion,
        "gate only": family.gate_only,
        "refused": "by configuration" if callable(family.refuse) else family.refuse,
        "masked below": family.masked_below,
        "time first": family.time_first,
    }
    return {"name": name, "facts": {fact: value for fact, value in facts.items() if value}}


def _cell(value: object) -> str:
    return "; ".join(f"{name}: {fact}" for name, fact in value.items()) if isinstance(value, dict) else str(value)


def _list_archs() -> list[dict[str, Any]]:
    return [_family(name, family) for name, family in sorted(FAMILIES.items())]


def _list_names(registry: Registry) -> list[dict[str, Any]]:
    return [{"name": name, "what": registry.summary(name)} for name in registry.names()]


def _kinds() -> dict[str, Callable[[], list[dict[str, Any]]]]:
    """Returns all kinds, each with a function that lists its names."""
    return {"archs": _list_archs, **{kind: partial(_list_names, registry) for kind, registry in KINDS.items()}}


def _option_rows(registry: Registry, name: str) -> list[dict[str, str]]:
    """Returns the declared options of one thing; none for kinds whose things are modules."""
    try:
        return describe_options(registry.get(name))
    except OptionError:
        return []


def _explain(session: Session, kind: str, name: str) -> None:
    """Prints the documentation of one thing and its options, from the declarations."""
    if kind not in KINDS:
        raise typer.BadParameter(f"{kind} have no text of their own; leave the name out")
    base = name.partition("(")[0].partition(":")[0]
    text, options = KINDS[kind].documentation(base), _option_rows(KINDS[kind], base)
    for line in text.splitlines():
        session.line(line)
    if options:
        session.line("")
        session.table(list(options[0]), [list(row.values()) for row in options])
    session.result({"kind": kind, "name": name, "text": text, "options": options})


@command
def run(session: Session, kind: Kind = None, name: Name = None) -> None:
    """List all kinds of names, or the names of one kind, or explain one name."""
    kinds = _kinds()
    if kind is not None and kind not in kinds:
        raise unknown("kind", kind, kinds)
    if kind is not None and name is not None:
        _explain(session, kind, name)
        return
    rows = kinds[kind]() if kind else [{"kind": name, "names": len(rows())} for name, rows in sorted(kinds.items())]
    columns = list(rows[0]) if rows else ["name"]
    session.table(columns, [[_cell(value) for value in row.values()] for row in rows])
    session.result({"kind": kind, "rows": rows})
    if kind == "archs":
        session.note("Most families need no row: detection reads their modules. docs/census.md lists every model type.")
    elif kind is None:
        session.next("ls", next(iter(sorted(kinds))))
    else:
        session.next("ls", kind, rows[0]["name"])
