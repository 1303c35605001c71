"""HeadProfiles and attention maps of a run as the page shows them. Maps are packed when it is known how many of them there is room for."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headcount.runs.schema import BlockRecord
from headcount.runs.store import Run

KIND = "profiles"
PORTRAIT = ("n_sentences", "distances", "distance", "pos", "relation", "entropy", "confidence", "similar", "examples")


@dataclass(frozen=True, slots=True)
class Maps:
    """The attention maps of a run before they are packed, by sentence and block, and its sentences."""

    sentences: Sequence[Mapping[str, Any]] = ()
    arrays: Mapping[tuple[int, int], np.ndarray] = field(default_factory=dict)
    sizes: Sequence[int] = ()
    """How many heads each block has."""
    packs: dict[tuple[int, int, tuple[int, ...]], str] = field(default_factory=dict)
    """What is packed already: a report tries several numbers of sentences."""

    def packed(self, n_sentences: int | None = None, heads: Sequence[Sequence[int]] | None = None) -> dict[str, Any] | None:
        """The first sentences with the maps of some heads of every block (of all, if not told); None where there is nothing to show."""
        shown = len(self.sentences) if n_sentences is None else min(n_sentences, len(self.sentences))
        if not shown:
            return None
        maps = [[self._one(sentence, block, heads) for block in range(len(self.sizes))] for sentence in range(shown)]
        included = (
            None if heads is None else [list(mine) if len(mine) < size else None for mine, size in zip(heads, self.sizes, strict=True)]
        )
        return {"sentences": list(self.sentences[:shown]), "maps": maps, "included": included or [None] * len(self.sizes)}

    def _one(self, sentence: int, block: int, heads: Sequence[Sequence[int]] | None) -> str | None:
        found = self.arrays.get((sentence, block))
        if found is None or (heads is not None and not heads[block]):
            return None
        shown = tuple(range(len(found)) if heads is None else heads[block])
        if (sentence, block, shown) not in self.packs:
            self.packs[sentence, block, shown] = pack(found[list(shown)])
        return self.packs[sentence, block, shown]


def pack(array: np.ndarray) -> str:
    """Base64 of the raw deflate of bytes."""
    made = zlib.compressobj(6, zlib.DEFLATED, -15)
    return base64.b64encode(made.compress(np.ascontiguousarray(array, dtype=np.uint8).tobytes()) + made.flush()).decode()


def unpack(text: str) -> bytes:
    """What `pack` packed, as the page reads it."""
    return zlib.decompressobj(-15).decompress(base64.b64decode(text))


def portraits_of(run: Run, heads: Sequence[str], blocks: Sequence[BlockRecord]) -> tuple[dict[str, Any] | None, Maps, list[str]]:
    """The portraits of a run, its maps, and what could not be made of them."""
    artifacts = list(run.results(KIND).values())
    if not artifacts:
        return None, Maps(), []
    content, arrays = artifacts[0].content, artifacts[0].arrays
    notes = list(content["notes"])
    if list(content["heads"]) != list(heads):
        return None, Maps(), notes
    place = {block.path: i for i, block in enumerate(blocks)}
    there = [place.get(path) for path in content["blocks"]]
    maps = {}
    for name, array in arrays.items():
        sentence, _, block = name.partition("/")
        target = there[int(block)]
        if target is not None:
            maps[int(sentence), target] = array
    found = {name: content[name] for name in PORTRAIT}
    return found, Maps(content["sentences"], maps, [len(block.heads) for block in blocks]), notes
