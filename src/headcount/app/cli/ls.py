"""`headcount ls`: the names that commands take. Lists import no torch; explaining one name imports its file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headcount.app.console.command import command
from headcount.app.console.session import Session
from headcount.core.errors import unknown_name_error
from headcount.core.options import describe_options
from headcount.core.registry import KINDS
from headcount.models.archs.families import FAMILIES, Family

KindName = Annotated[str | None, typer.Argument(metavar="[KIND]", help="The kind to list; without it, all kinds.", show_default=False)]

Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="The name to explain: its definition and its options.", show_default=False)
]


def _family_to_row(family_name: str, family: Family) -> dict[str, Any]:
    facts = {
        "projections": "by configuration" if callable(family.fusion) else family.fusion,
        "gate only": family.gate_only,
        "refused": "by configuration" if callable(family.refuse) else family.refuse,
        "masked below": family.masked_below,
        "time first": family.time_first,
    }
    return {"name": family_name, "facts": {fact: value for fact, value in facts.items() if value}}


def _format_cell(value: object) -> str:
    return "; ".join(f"{name}: {fact}" for name, fact in value.items()) if isinstance(value, dict) else str(value)


def _list_name_rows(kind: str) -> list[dict[str, Any]]:
    """Returns one row for each name of a kind."""
    if kind == "archs":
        return [_family_to_row(name, family) for name, family in sorted(FAMILIES.items())]
    return [{"name": name, "what": KINDS[kind].summary(name)} for name in KINDS[kind].names()]


def _print_documentation(session: Session, kind: str, name: str) -> None:
    """Prints the documentation of a name and its declared options."""
    if kind not in KINDS:
        raise typer.BadParameter(f"{kind} have no text of their own; leave the name out")
    base = name.partition("(")[0].partition(":")[0]
    text, options = KINDS[kind].documentation(base), describe_options(KINDS[kind].get(base))
    for line in text.splitlines():
        session.write_line(line)
    if options:
        session.write_line("")
        session.write_table(list(options[0]), [list(row.values()) for row in options])
    session.write_json({"kind": kind, "name": name, "text": text, "options": options})


@command
def run(session: Session, kind: KindName = None, name: Name = None) -> None:
    """List all kinds of names, or the names of one kind, or explain one name."""
    kinds = sorted(("archs", *KINDS))
    if kind is not None and kind not in kinds:
        raise unknown_name_error("kind", kind, kinds)
    if kind is not None and name is not None:
        _print_documentation(session, kind, name)
        return
    rows = (
        _list_name_rows(kind)
        if kind
        else [{"kind": name, "names": len(KINDS[name].names() if name in KINDS else FAMILIES)} for name in kinds]
    )
    columns = list(rows[0]) if rows else ["name"]
    session.write_table(columns, [[_format_cell(value) for value in row.values()] for row in rows])
    session.write_json({"kind": kind, "rows": rows})
    if kind == "archs":
        session.write_note("Most families need no row: detection reads their modules. docs/census.md lists every model type.")
    elif kind is None:
        session.suggest_next("ls", kinds[0])
    else:
        session.suggest_next("ls", kind, rows[0]["name"])
