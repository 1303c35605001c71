"""Kinds of damage that a file can suffer, each drawn by a seed: bytes, structure, and files that change places."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any


@dataclass(frozen=True)
class Victim:
    """A file to damage: its path, its bytes, those of its counterpart in another folder, and those of a file beside it."""

    path: Path
    content: bytes
    counterpart: bytes
    neighbour: bytes


Mutation = Callable[[Victim, Random], bytes | None]
"""The new bytes of a file; None where that kind of damage does not apply to it."""


class Removed(bytes):
    """Stands for a file that is gone."""


def _place(content: bytes, draw: Random) -> int:
    return draw.randrange(len(content))


def flip_bit(victim: Victim, draw: Random) -> bytes:
    position = _place(victim.content, draw)
    return victim.content[:position] + bytes([victim.content[position] ^ (1 << draw.randrange(8))]) + victim.content[position + 1 :]


def insert_byte(victim: Victim, draw: Random) -> bytes:
    position = _place(victim.content, draw)
    return victim.content[:position] + bytes([draw.randrange(256)]) + victim.content[position:]


def delete_byte(victim: Victim, draw: Random) -> bytes:
    position = _place(victim.content, draw)
    return victim.content[:position] + victim.content[position + 1 :]


def truncate(victim: Victim, draw: Random) -> bytes:
    return victim.content[: _place(victim.content, draw)]


def fill_with_zeros(victim: Victim, draw: Random) -> bytes:
    position, length = _place(victim.content, draw), draw.choice((4, 64, 4096))
    return victim.content[:position] + bytes(len(victim.content[position : position + length])) + victim.content[position + length :]


def duplicate_chunk(victim: Victim, draw: Random) -> bytes:
    position, length = _place(victim.content, draw), draw.choice((1, 16, 256))
    chunk = victim.content[position : position + length]
    return victim.content[:position] + chunk + victim.content[position:]


def swap_chunks(victim: Victim, draw: Random) -> bytes:
    length = draw.choice((1, 8, 64))
    first, second = sorted((_place(victim.content, draw), _place(victim.content, draw)))
    if second < first + length:
        return victim.content[::-1]
    content = victim.content
    return (
        content[:first]
        + content[second : second + length]
        + content[first + length : second]
        + content[first : first + length]
        + (content[second + length :])
    )


def append_bytes(victim: Victim, draw: Random) -> bytes:
    return victim.content + draw.choice((b"\n", b" ", b"\0" * 100, b"{}", victim.content))


def empty(_victim: Victim, _draw: Random) -> bytes:
    return b""


def remove_file(_victim: Victim, _draw: Random) -> bytes:
    return Removed()


def take_counterpart(victim: Victim, _draw: Random) -> bytes:
    """The same file of another folder."""
    return victim.counterpart


def take_neighbour(victim: Victim, _draw: Random) -> bytes:
    """Another file of the same folder."""
    return victim.neighbour


# Damage to what the bytes say.


def _split(victim: Victim) -> tuple[bytes, Callable[[bytes], bytes]] | None:
    """The JSON of a file, and how the file is put together around another one."""
    content = victim.content
    if victim.path.suffix == ".json":
        return content, lambda text: text
    if victim.path.suffix == ".artifact":
        line, _, payload = content.partition(b"\n")
        return line, lambda text: text.replace(b"\n", b" ") + b"\n" + payload
    if victim.path.suffix == ".safetensors":
        (length,) = struct.unpack("<Q", content[:8])
        return content[8 : 8 + length], lambda text: struct.pack("<Q", len(text)) + text + content[8 + length :]
    return None


def _objects(value: Any) -> list[dict[str, Any]]:
    """Every object in a JSON value."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return ([value] if isinstance(value, dict) and value else []) + [each for part in inner for each in _objects(part)]


def _leaves(value: Any, kinds: tuple[type, ...]) -> list[tuple[Any, Any]]:
    """(container, key) of every value of some kinds, in a JSON value."""
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    pairs = [(value, key) for key, part in items if type(part) in kinds]
    return pairs + [leaf for _, part in items for leaf in _leaves(part, kinds)]


def _edited(victim: Victim, draw: Random, kinds: tuple[type, ...], other: Callable[[Any], Any]) -> bytes | None:
    split = _split(victim)
    if split is None:
        return None
    text, join = split
    content = json.loads(text)
    leaves = _leaves(content, kinds)
    if not leaves:
        return None
    holder, key = draw.choice(leaves)
    holder[key] = other(holder[key])
    return join(json.dumps(content, indent=2 if victim.path.suffix == ".json" else None).encode())


def edit_number(victim: Victim, draw: Random) -> bytes | None:
    if victim.path.suffix == ".csv":
        lines = victim.content.decode().splitlines(keepends=True)
        row = draw.randrange(1, len(lines))
        lines[row] = re.sub(r"([0-9])(?=[^0-9]*$)", lambda digit: str((int(digit[1]) + 1) % 10), lines[row], count=1)
        return "".join(lines).encode()
    change = draw.choice((lambda value: value + 1, lambda value: -value - 1, lambda value: value * 2 + 1))
    return _edited(victim, draw, (int, float), change)


def edit_string(victim: Victim, draw: Random) -> bytes | None:
    if victim.path.suffix == ".csv":
        return victim.content.replace(b"L0H1", b"L0H2" if draw.random() < 0.5 else b"L9H9", 1)

    def change(value: str) -> str:
        other_digit = re.sub("[0-9]", lambda digit: str((int(digit[0]) + 1) % 10), value, count=1)
        return draw.choice((value + "x", value[1:] + "1", other_digit if other_digit != value else value[::-1] + "0"))

    return _edited(victim, draw, (str,), change)


def edit_value(victim: Victim, draw: Random) -> bytes | None:
    """Any value becomes one of another type."""
    return _edited(victim, draw, (int, float, str, bool, type(None)), lambda _: draw.choice((None, [], {}, "text", 10**400, -1, [[1]])))


def edit_list(victim: Victim, draw: Random) -> bytes | None:
    """A list loses its last entry, or gets another."""
    lists = (list,)
    return _edited(victim, draw, lists, lambda value: value[:-1] if value and draw.random() < 0.5 else [*value, value[0] if value else 0])


def remove_key(victim: Victim, draw: Random) -> bytes | None:
    split = _split(victim)
    if split is None:
        return None
    text, join = split
    content = json.loads(text)
    chosen = draw.choice(_objects(content))
    del chosen[draw.choice(sorted(chosen))]
    return join(json.dumps(content, indent=2 if victim.path.suffix == ".json" else None).encode())


def duplicate_key(victim: Victim, draw: Random) -> bytes | None:
    """A name of the outermost object comes twice, with another value the second time."""
    split = _split(victim)
    if split is None:
        return None
    text, join = split
    name, value = draw.choice(sorted(json.loads(text).items()))
    changed = value + 1 if type(value) in (int, float) else value[:-1] if isinstance(value, str | list) and value else None
    body = text.rstrip()
    return join(body[:-1].rstrip() + f", {json.dumps(name)}: {json.dumps(changed)}}}".encode())


MUTATIONS: Mapping[str, Mutation] = {
    mutation.__name__.replace("_", " "): mutation
    for mutation in (
        flip_bit,
        insert_byte,
        delete_byte,
        truncate,
        fill_with_zeros,
        duplicate_chunk,
        swap_chunks,
        append_bytes,
        empty,
        remove_file,
        take_counterpart,
        take_neighbour,
        edit_number,
        edit_string,
        edit_value,
        edit_list,
        remove_key,
        duplicate_key,
    )
}
