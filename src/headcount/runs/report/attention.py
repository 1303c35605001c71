"""Head profiles and attention maps of a run as the page shows them. Maps are packed once it is known for how many of them there is room."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from headcount.runs.report import contract
from headcount.runs.schema import BlockRecord
from headcount.runs.store import Run

KIND = "profiles"
FIELDS = ("n_sentences", "distances", "distance", "pos", "relation", "entropy", "confidence", "similar", "examples")


@dataclass(frozen=True, slots=True)
class RunAttentionMaps:
    """The attention maps of a run, by sentence and block, before they are packed, and its sentences."""

    sentences: Sequence[Mapping[str, Any]] = ()
    arrays: Mapping[tuple[int, int], np.ndarray] = field(default_factory=dict)
    sizes: Sequence[int] = ()
    """How many heads each block has."""
    packs: dict[tuple[int, int, tuple[int, ...]], str] = field(default_factory=dict)
    """Maps that are packed already: a report tries several numbers of sentences."""

    def pack_sentences(self, n_sentences: int | None = None, heads: Sequence[Sequence[int]] | None = None) -> contract.Attention | None:
        """Returns the first sentences (default: all) with the maps of some heads of every block (default: all); None if there is none."""
        n_included = len(self.sentences) if n_sentences is None else min(n_sentences, len(self.sentences))
        if not n_included:
            return None
        maps = [[self._pack_map(sentence, block, heads) for block in range(len(self.sizes))] for sentence in range(n_included)]
        included: list[list[int] | None] = [None] * len(self.sizes)
        if heads is not None:
            included = [list(chosen) if len(chosen) < size else None for chosen, size in zip(heads, self.sizes, strict=True)]
        return {"sentences": list(self.sentences[:n_included]), "maps": maps, "included": included}

    def _pack_map(self, sentence: int, block: int, heads: Sequence[Sequence[int]] | None) -> str | None:
        array = self.arrays.get((sentence, block))
        if array is None or (heads is not None and not heads[block]):
            return None
        included = tuple(range(len(array)) if heads is None else heads[block])
        if (sentence, block, included) not in self.packs:
            self.packs[sentence, block, included] = deflate_to_base64(array[list(included)])
        return self.packs[sentence, block, included]


def deflate_to_base64(array: np.ndarray) -> str:
    """Returns the bytes of an array, compressed by raw deflate, in base64."""
    compressor = zlib.compressobj(6, zlib.DEFLATED, -15)
    return base64.b64encode(compressor.compress(np.ascontiguousarray(array, dtype=np.uint8).tobytes()) + compressor.flush()).decode()


class RunProfiles(NamedTuple):
    """The head profiles of a run (None if it has none of the heads of the page), its attention maps, and notes on what is missing."""

    profiles: dict[str, Any] | None
    maps: RunAttentionMaps
    notes: list[str]


def collect_profiles(run: Run, head_names: Sequence[str], blocks: Sequence[BlockRecord]) -> RunProfiles:
    """Returns the head profiles and attention maps of a run."""
    artifacts = list(run.results(KIND).values())
    if not artifacts:
        return RunProfiles(None, RunAttentionMaps(), [])
    content, arrays = artifacts[0].content, artifacts[0].arrays
    notes = list(content["notes"])
    if list(content["heads"]) != list(head_names):
        return RunProfiles(None, RunAttentionMaps(), notes)
    indices = {block.path: index for index, block in enumerate(blocks)}
    block_indices = [indices.get(path) for path in content["blocks"]]
    maps = {}
    for name, array in arrays.items():
        sentence, _, block = name.partition("/")
        index = block_indices[int(block)]
        if index is not None:
            maps[int(sentence), index] = array
    profiles = {name: content[name] for name in FIELDS}
    return RunProfiles(profiles, RunAttentionMaps(content["sentences"], maps, [len(block.heads) for block in blocks]), notes)
