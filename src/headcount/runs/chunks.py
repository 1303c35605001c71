"""The blocks of a pass over data as artifacts: a pass that is stopped goes on at the block where it was, and several processes can share one."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from headcount.core.files import canonical
from headcount.runs.artifacts import ArtifactKey
from headcount.runs.store import Run

KIND = "block"


class Chunks:
    """The finished blocks of one pass, which `parts` determine: the memory of `headcount.data.stream`. `goal` are the artifacts made out of them."""

    def __init__(
        self, run: Run, name: str, parts: Mapping[str, Any], made: Mapping[str, Any], *, goal: Sequence[ArtifactKey], in_order: bool = False
    ) -> None:
        self.run, self.name, self.parts, self.made, self.goal, self.in_order = run, name, parts, made, goal, in_order
        self._seen: dict[str, ArtifactKey] = {}
        self._whole: set[str] = set()

    @property
    def shared(self) -> bool:
        """Whether other processes may be at blocks of this pass; never where a block depends on those before it."""
        return not self.in_order and self.run.hold is not None and (self.run.hold.joined or self.run.expects_workers)

    @property
    def leads(self) -> bool:
        """Whether this process makes the result out of the blocks."""
        return self.run.leads

    @property
    def over(self) -> bool:
        """Whether the result is there already, made by the process that leads."""
        return not self.leads and all((self.run.folder / spec.path).exists() for spec in self.goal)

    def spec(self, block: Any) -> ArtifactKey:
        """The artifact of a block: the pass, and the examples in it."""
        digest = hashlib.sha256(block.digest).hexdigest()
        made = ArtifactKey(
            KIND, f"{self.name} {block.first}", {"pass": dict(self.parts), "first": block.first, "size": block.size, "digest": digest}
        )
        return self._seen.setdefault(made.key, made)

    def has(self, block: Any) -> bool:
        """Whether a block is finished and whole."""
        spec = self.spec(block)
        if spec.key not in self._whole and self.run.find(spec) is not None:
            self._whole.add(spec.key)
        return spec.key in self._whole

    def get(self, block: Any) -> tuple[Mapping[str, np.ndarray], int | None] | None:
        """The results of a block, if it is finished, and the size of the batches they were made in."""
        artifact = self.run.find(self.spec(block))
        return None if artifact is None else (artifact.arrays, artifact.content["batch_size"])

    def put(self, block: Any, measured: Mapping[str, np.ndarray], batch_size: int | None) -> None:
        """Keeps the results of a block."""
        self.run.commit(self.spec(block), {"batch_size": batch_size}, measured, made=self.made)

    @contextmanager
    def claim(self, block: Any) -> Iterator[bool]:
        """Whether this process may compute a block now, while the context lasts."""
        assert self.run.hold is not None
        key = self.spec(block).key
        mine = self.run.hold.claim(key)
        try:
            yield mine
        finally:
            if mine:
                self.run.hold.release(key)

    def clear(self) -> None:
        """Removes the blocks, if this process leads: what was made of them is kept."""
        if not self.leads:
            return
        for spec in self._seen.values():
            if (self.run.folder / spec.path).exists():
                self.run.discard(spec)
        discard_chunks(self.run, lambda parts: parts == self.parts)


def begun(run: Run, is_wanted: Callable[[Mapping[str, Any]], bool]) -> list[Mapping[str, Any]]:
    """The passes of a certain kind that have finished blocks, by what determines them; the one with the most blocks first."""
    numbers: Counter[bytes] = Counter(canonical(parts) for artifact in run.each(KIND) if is_wanted(parts := artifact.spec.parts["pass"]))
    return [json.loads(parts) for parts, _ in sorted(numbers.items(), key=lambda pair: (-pair[1], pair[0]))]


def discard_chunks(run: Run, is_done: Callable[[Mapping[str, Any]], bool]) -> None:
    """Removes the blocks of passes whose results are kept, such as those that a process left that died while it removed them."""
    for artifact in run.each(KIND):
        if is_done(artifact.spec.parts["pass"]):
            run.discard(artifact.spec)
