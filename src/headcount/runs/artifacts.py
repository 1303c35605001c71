"""An artifact: one finished unit of work in one file that states its inputs and carries its own checksums.

    {"artifact": 3, "kind": …, "name": …, "digest": …, "inputs": …, "provenance": …, "content": …, "bytes": n, "sha256": …, "seal": …}\\n
    n bytes: arrays as safetensors, or nothing

`inputs` hold everything that determines the artifact; `digest` is the hash of kind, name and inputs, and an artifact is reused only under the same
digest. `provenance` names what it was computed on (versions, threads, CPU features) and does not enter the digest. `seal` is the hash of the line
without the seal, `sha256` that of the bytes after it, and the line has one canonical form: a flipped bit, a truncated file or a file under another
artifact's name is detected before anything is read from it.
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
from typing import Any, TypedDict

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as tensor_bytes

from headcount.core.errors import ArtifactError, NonFinite
from headcount.core.files import add_seal, canonical_json, seal
from headcount.runs.schema import VERSION, other_version_message

MAX_LINE = 64 * 2**20
SUFFIX = ".artifact"


class Damaged(ArtifactError):
    """A file of a run that is not what was written."""


class Foreign(Damaged):
    """An undamaged file that belongs to another run."""


class ArtifactHeader(TypedDict):
    """The first line of an artifact's file, in the order in which it is written."""

    artifact: int
    kind: str
    name: str
    digest: str
    inputs: dict[str, Any]
    provenance: dict[str, Any]
    content: dict[str, Any]
    bytes: int
    sha256: str
    seal: str


@dataclass(frozen=True)
class ArtifactKey:
    """Identifies an artifact: its kind, a readable name, and its `inputs`, everything that determines it as plain data."""

    kind: str
    name: str
    inputs: Mapping[str, Any]

    @cached_property
    def digest(self) -> str:
        """Hash of schema version, kind, name and inputs."""
        return hashlib.sha256(canonical_json([VERSION, self.kind, self.name, self.inputs])).hexdigest()

    @property
    def weight_hash(self) -> str | None:
        """Hash of the weights of the model that the artifact describes, None if its inputs name no model."""
        weights = self.inputs.get("weights")
        return weights if isinstance(weights, str) else None

    @property
    def path_in_run(self) -> Path:
        """Path within a run folder; a name taken from data cannot lead outside of it."""
        return Path("artifacts") / safe_name(self.kind) / f"{safe_name(self.name)}.{self.digest[:24]}{SUFFIX}"


def safe_name(text: str) -> str:
    """Returns a short file name for any text."""
    return re.sub(r"[^a-z0-9-]+", ".", text.lower()).strip(".")[:60] or "unnamed"


@dataclass(frozen=True)
class Artifact:
    """A finished unit of work: plain `content` and `arrays`."""

    key: ArtifactKey
    content: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def pack(self) -> bytes:
        """Returns the bytes of its file; raises NonFinite if a number in it is not finite."""
        for name, array in self.arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                position = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
                raise NonFinite(
                    f"{self.key.kind} '{self.key.name}' has a number that is not finite ({name} at {position}); it is not written"
                )
        payload = tensor_bytes({name: np.ascontiguousarray(array) for name, array in self.arrays.items()}) if self.arrays else b""
        header = {
            "artifact": VERSION,
            "kind": self.key.kind,
            "name": self.key.name,
            "digest": self.key.digest,
            "inputs": dict(self.key.inputs),
            "provenance": dict(self.provenance),
            "content": dict(self.content),
            "bytes": len(payload),
            "sha256": hashlib.sha256(payload).hexdigest(),
        }
        try:
            line = _header_line(add_seal(header))
        except ValueError as error:
            raise NonFinite(f"{self.key.kind} '{self.key.name}' has a number that is not finite; it is not written") from error
        return line + b"\n" + payload

    @classmethod
    def unpack(cls, file_bytes: bytes, path: Path) -> Artifact:
        """Returns the artifact in the bytes of the file at `path`; raises Damaged if they are not those that were written."""
        line, newline, _ = file_bytes[:MAX_LINE].partition(b"\n")
        if not newline:
            raise Damaged(f"{path} is truncated: it ends before its first line does")
        header = _read_header(line, path)
        try:
            return cls._from_header(header, file_bytes[len(line) + 1 :], path)
        except (KeyError, TypeError, AttributeError) as error:
            raise Damaged(f"{path} is damaged: its record is not that of an artifact ({type(error).__name__}: {error})") from error

    @classmethod
    def _from_header(cls, header: ArtifactHeader, payload: bytes, path: Path) -> Artifact:
        if len(payload) != header["bytes"] or hashlib.sha256(payload).hexdigest() != header["sha256"]:
            raise Damaged(f"{path} is damaged: its numbers are not those that were written")
        key = ArtifactKey(header["kind"], header["name"], header["inputs"])
        if key.digest != header["digest"] or key.path_in_run.name != path.name:
            raise Foreign(f"{path} is under another artifact's name: it holds {key.kind} '{key.name}'")
        try:
            arrays = read_tensors(payload) if payload else {}
        except SafetensorError as error:
            raise Damaged(f"{path} is damaged: {error}") from error
        return cls(key, header["content"], arrays, header["provenance"])


_END = re.compile(rb'"bytes": ([0-9]{1,18}), "sha256": "[0-9a-f]{64}", "seal": "[0-9a-f]{64}"}\n$')


def read_artifact_bytes(path: Path) -> bytes:
    """Returns the bytes of an artifact's file, at most one more than its first line promises, so that a file that grew cannot fill the memory."""
    if path.exists() and not path.is_file():
        raise Damaged(f"{path} is damaged: it is no regular file")
    with path.open("rb") as file:
        line = file.readline(MAX_LINE)
        match = _END.search(line[-256:])
        size = os.fstat(file.fileno()).st_size
        return line + file.read(min(int(match[1]), size) + 1) if match else line


def _header_line(header: Mapping[str, object]) -> bytes:
    return json.dumps(header, allow_nan=False).encode()


def _read_header(line: bytes, path: Path) -> ArtifactHeader:
    try:
        header = json.loads(line)
        version = header["artifact"]
        is_sealed = header["seal"] == seal(header)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{path} is damaged: it does not begin with the record of an artifact ({type(error).__name__})") from error
    if not is_sealed:
        raise Damaged(f"{path} is damaged: its record is not the one that was written")
    if version != VERSION:
        raise ArtifactError(other_version_message(path, version))
    if line != _header_line(header):
        raise Damaged(f"{path} is damaged: its record is not in the form in which it was written")
    return header
