"""Studies that answer several questions from the same measurements: the part of the result for each question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headcount.core.figure import Figure
from headcount.core.study_result import Table


class Part(NamedTuple):
    """The tables, the figures and the sentence of one question."""

    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    sentence: str


def choose_part(parts: Mapping[str, Part], name_or_all: str) -> Part:
    """Returns the part of that name, or all of them joined for the name `all`; tables that parts share occur once."""
    chosen = list(parts.values()) if name_or_all == "all" else [parts[name_or_all]]
    tables = {table.name: table for part in chosen for table in part.tables}
    figures = {figure.name: figure for part in chosen for figure in part.figures}
    return Part(tuple(tables.values()), tuple(figures.values()), " ".join(part.sentence for part in chosen))


def layer_of_address(address: object) -> str:
    """Returns the layer of a head's address: `cross.L3` of `cross.L3H7`."""
    return str(address).rpartition("H")[0]
