"""The chunks of a pass over data as artifacts: a stopped pass resumes at the next chunk, and several processes can share one pass."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from headcount.core.files import canonical_json
from headcount.runs.artifacts import ArtifactKey
from headcount.runs.store import Run

KIND = "chunk"
Inputs = Mapping[str, Any]
"""Everything that determines a pass, as plain data."""


class Chunks:
    """The finished chunks of one pass over data: the chunk store of `headcount.data.stream`.

    Args:
        run: The run folder that keeps them.
        name: Readable name of the pass.
        inputs: Everything that determines the pass.
        provenance: What the chunks are computed on.
        goal: The artifacts that are made of the chunks.
        in_order: Whether a chunk depends on those before it, so that processes cannot share the pass.
    """

    def __init__(
        self, run: Run, name: str, inputs: Inputs, provenance: Mapping[str, object], *, goal: Sequence[ArtifactKey], in_order: bool = False
    ) -> None:
        self.run, self.name, self.inputs, self.provenance, self.goal, self.in_order = run, name, inputs, provenance, goal, in_order
        self._keys: dict[str, ArtifactKey] = {}
        self._intact: set[str] = set()

    @property
    def is_shared(self) -> bool:
        """Whether other processes may compute chunks of this pass."""
        return not self.in_order and self.run.lock is not None and (self.run.lock.joined or self.run.expects_workers)

    @property
    def leads(self) -> bool:
        """Whether this process makes the result of the chunks."""
        return self.run.leads

    @property
    def has_final_result(self) -> bool:
        """Whether the leading process has made the result already."""
        return not self.leads and all((self.run.folder / key.path).exists() for key in self.goal)

    def key_of(self, chunk: Any) -> ArtifactKey:
        """Returns the key of a chunk: the pass and the examples in the chunk."""
        inputs = {"pass": dict(self.inputs), "first": chunk.first, "size": chunk.size, "digest": hashlib.sha256(chunk.digest).hexdigest()}
        key = ArtifactKey(KIND, f"{self.name} {chunk.first}", inputs)
        return self._keys.setdefault(key.digest, key)

    def has_result(self, chunk: Any) -> bool:
        """Whether a chunk is finished and undamaged."""
        key = self.key_of(chunk)
        if key.digest not in self._intact and self.run.find(key) is not None:
            self._intact.add(key.digest)
        return key.digest in self._intact

    def get(self, chunk: Any) -> tuple[Mapping[str, np.ndarray], int | None] | None:
        """Returns the results of a chunk and the batch size that they were computed with; None if it is not finished."""
        artifact = self.run.find(self.key_of(chunk))
        return None if artifact is None else (artifact.arrays, artifact.content["batch_size"])

    def put(self, chunk: Any, measured: Mapping[str, np.ndarray], batch_size: int | None) -> None:
        """Keeps the results of a chunk."""
        self.run.commit(self.key_of(chunk), {"batch_size": batch_size}, measured, provenance=self.provenance)

    @contextmanager
    def claim(self, chunk: Any) -> Iterator[bool]:
        """Yields whether this process may compute a chunk; no other process may while the context lasts."""
        assert self.run.lock is not None
        digest = self.key_of(chunk).digest
        is_claimed = self.run.lock.claim(digest)
        try:
            yield is_claimed
        finally:
            if is_claimed:
                self.run.lock.release(digest)

    def clear(self) -> None:
        """Removes the chunks if this process leads; the result made of them is kept."""
        if not self.leads:
            return
        for key in self._keys.values():
            if (self.run.folder / key.path).exists():
                self.run.discard(key)
        discard_chunks(self.run, lambda inputs: inputs == self.inputs)


def unfinished_passes(run: Run, is_wanted: Callable[[Inputs], bool]) -> list[Inputs]:
    """Returns the inputs of the passes that have finished chunks and satisfy `is_wanted`, the pass with the most chunks first."""
    numbers = Counter(canonical_json(inputs) for artifact in run.iter_artifacts(KIND) if is_wanted(inputs := artifact.key.inputs["pass"]))
    return [json.loads(inputs) for inputs, _ in sorted(numbers.items(), key=lambda pair: (-pair[1], pair[0]))]


def discard_chunks(run: Run, is_finished: Callable[[Inputs], bool]) -> None:
    """Removes the chunks of passes whose results are kept, such as those left by a process that died while it removed them."""
    for artifact in run.iter_artifacts(KIND):
        if is_finished(artifact.key.inputs["pass"]):
            run.discard(artifact.key)
