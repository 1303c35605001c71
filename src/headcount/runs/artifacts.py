"""An artifact: one finished unit of work in one file, which says by itself what determines it and whether it is whole.

    {"artifact": 3, "kind": …, "name": …, "key": …, "parts": …, "made": …, "content": …, "bytes": n, "sha256": …, "seal": …}\\n
    n bytes: arrays as safetensors, or nothing

`key` is the hash of kind, name and `parts`, which hold everything that determines the artifact: it is used again under the same key alone. `made`
says on what it was computed (versions, threads, processor) and determines nothing. `seal` is the hash of the whole line but itself, `sha256` that
of the bytes after it, and the line is the one way to write what it says, so that a flipped bit, a torn end or a file under another's name is
found out before anything is read from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as tensor_bytes

from headcount.core.errors import ArtifactError, NonFinite
from headcount.core.files import add_seal, canonical, seal
from headcount.runs.schema import VERSION, other_version

MAX_LINE = 64 * 2**20
SUFFIX = ".artifact"


class Damaged(ArtifactError):
    """A file of a run that is not what was written."""


class Foreign(Damaged):
    """A file of a run that is whole, but belongs to another run."""


@dataclass(frozen=True)
class ArtifactKey:
    """Which artifact: its kind, a name for people, and everything that determines it as plain data."""

    kind: str
    name: str
    parts: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        """The hash over everything that determines the artifact."""
        return hashlib.sha256(canonical([VERSION, self.kind, self.name, self.parts])).hexdigest()

    @property
    def weights(self) -> str | None:
        """The hash of the weights of the model that the artifact is about, where its parts name one."""
        weights = self.parts.get("weights")
        return weights if isinstance(weights, str) else None

    @property
    def path(self) -> Path:
        """Where the artifact lies in a run folder; no name from data leads anywhere else."""
        return Path("artifacts") / safe_name(self.kind) / f"{safe_name(self.name)}.{self.key[:24]}{SUFFIX}"


def safe_name(text: str) -> str:
    """A short file name out of any text."""
    return re.sub(r"[^a-z0-9-]+", ".", text.lower()).strip(".")[:60] or "unnamed"


@dataclass(frozen=True)
class Artifact:
    """A finished unit of work: plain `content` and `arrays`."""

    spec: ArtifactKey
    content: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)

    def pack(self) -> bytes:
        """The bytes of its file; NonFinite if a number in it is none."""
        for name, array in self.arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                where = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
                raise NonFinite(
                    f"{self.spec.kind} '{self.spec.name}' has a number that is not finite ({name} at {where}); it is not written"
                )
        payload = tensor_bytes({name: np.ascontiguousarray(array) for name, array in self.arrays.items()}) if self.arrays else b""
        head = {
            "artifact": VERSION,
            "kind": self.spec.kind,
            "name": self.spec.name,
            "key": self.spec.key,
            "parts": dict(self.spec.parts),
            "made": dict(self.made),
            "content": dict(self.content),
            "bytes": len(payload),
            "sha256": hashlib.sha256(payload).hexdigest(),
        }
        try:
            line = _line(add_seal(head))
        except ValueError as error:
            raise NonFinite(f"{self.spec.kind} '{self.spec.name}' has a number that is not finite; it is not written") from error
        return line + b"\n" + payload

    @classmethod
    def unpack(cls, content: bytes, place: Path) -> Artifact:
        """The artifact in the bytes of the file at `place`; Damaged says what is wrong with them."""
        line, found, payload = content[:MAX_LINE].partition(b"\n")
        head = _head(line, place) if found else None
        if head is None:
            raise Damaged(f"{place} is torn: it ends before its first line does")
        payload = content[len(line) + 1 :]
        try:
            return cls._of(head, payload, place)
        except (KeyError, TypeError, AttributeError) as error:
            raise Damaged(f"{place} is damaged: its record is not that of an artifact ({type(error).__name__}: {error})") from error

    @classmethod
    def _of(cls, head: dict[str, Any], payload: bytes, place: Path) -> Artifact:
        if len(payload) != head["bytes"] or hashlib.sha256(payload).hexdigest() != head["sha256"]:
            raise Damaged(f"{place} is damaged: its numbers are not those that were written")
        spec = ArtifactKey(head["kind"], head["name"], head["parts"])
        if spec.key != head["key"] or spec.path.name != place.name:
            raise Foreign(f"{place} is under another artifact's name: it holds {spec.kind} '{spec.name}'")
        return cls(spec, head["content"], _arrays(payload, place), head["made"])


_END = re.compile(rb'"bytes": ([0-9]{1,18}), "sha256": "[0-9a-f]{64}", "seal": "[0-9a-f]{64}"}\n$')


def read_artifact(path: Path) -> bytes:
    """The bytes of an artifact's file, at most one more than its first line promises: what grew, or is no file at all, fills no memory."""
    if path.exists() and not path.is_file():
        raise Damaged(f"{path} is damaged: it is no regular file")
    with path.open("rb") as file:
        line = file.readline(MAX_LINE)
        told = _END.search(line[-256:])
        room = os.fstat(file.fileno()).st_size
        return line + file.read(min(int(told[1]), room) + 1) if told else line


def _line(head: Mapping[str, Any]) -> bytes:
    return json.dumps(head, allow_nan=False).encode()


def _head(line: bytes, place: Path) -> dict[str, Any]:
    try:
        head = json.loads(line)
        version = head["artifact"]
        whole = head["seal"] == seal(head)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{place} is damaged: it does not begin with the record of an artifact ({type(error).__name__})") from error
    if not whole:
        raise Damaged(f"{place} is damaged: its record is not the one that was written")
    if version != VERSION:
        raise ArtifactError(other_version(place, version))
    if line != _line(head):
        raise Damaged(f"{place} is damaged: its record is not written as it was")
    return head


def _arrays(payload: bytes, place: Path) -> dict[str, np.ndarray]:
    if not payload:
        return {}
    try:
        return read_tensors(payload)
    except SafetensorError as error:
        raise Damaged(f"{place} is damaged: {error}") from error
