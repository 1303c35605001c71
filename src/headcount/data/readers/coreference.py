"""Coreference in the bracket notation of CorefUD (`Entity=` in the MISC column), as far as mentions lie within one sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headcount.data.text.annotated import Cluster, Span

MENTION = re.compile(r"(\()?([^()]+)(\))?")
DEFAULT = "eid"
"""What a mention's fields are where the file does not say."""


def place_of_name(fields: str) -> int:
    """Which of the fields that `# global.Entity` states, set apart by hyphens, names the entity."""
    names = fields.split("-")
    return next((names.index(name) for name in ("eid", "GRP") if name in names), 0)


def clusters(marks: Sequence[str], place: int = 0) -> tuple[tuple[Cluster, ...], int]:
    """Entities with two or more mentions among the words, of which each has its mark, and how many mentions were left out.

    Left out are mentions in several parts (`e1[1/2]`), and those that open or close in another sentence.
    """
    opened: dict[str, list[int]] = {}
    found: dict[str, list[Span]] = {}
    left_out = 0
    for word, mark in enumerate(marks):
        for opens, inner, closes in MENTION.findall(mark):
            name = _name(inner, place)
            if "[" in name:
                left_out += bool(opens)
                continue
            if opens:
                opened.setdefault(name, []).append(word)
            if closes and opened.get(name):
                found.setdefault(name, []).append((opened[name].pop(), word + 1))
            elif closes:
                left_out += 1
    left_out += sum(map(len, opened.values()))
    return tuple(tuple(sorted(spans)) for spans in found.values() if len(spans) > 1), left_out


def _name(inner: str, place: int) -> str:
    fields = inner.split("-")
    return fields[place] if place < len(fields) else fields[0]
