"""heads.json: what was cut from a saved model, under original addresses, and the hash of every file beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headcount.errors import ArtefactError
from headcount.files import is_file, read_json, sha256
from headcount.heads import HeadMap

NAME = "heads.json"
SCHEMA = 1


class BlockEntry(BaseModel):
    """One attention block: its address, where it lives, the original indices of the heads it keeps, and of how many."""

    model_config = ConfigDict(extra="forbid")
    block: str
    path: str
    kind: Literal["encoder-self", "decoder-self", "cross"]
    heads: list[int]
    of: int


class FileEntry(BaseModel):
    """A file's size and hash."""

    model_config = ConfigDict(extra="forbid")
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """The content of heads.json."""

    model_config = ConfigDict(extra="forbid")
    schema_version: int
    headcount: str
    transformers: str
    model_class: str
    model_type: str
    command: str | None = None
    removed: list[str]
    blocks: list[BlockEntry]
    cost: dict[str, dict[str, float]] | None = None
    told: list[str] = []
    named_heads: dict[str, list[list[int]]] = {}
    """Configuration fields that name heads as [layer, head], by dotted name, in original indices; a cut renumbers the fields themselves."""
    files: dict[str, FileEntry]


def blocks_of(heads: HeadMap) -> list[BlockEntry]:
    """The entries of a live model's blocks."""
    return [
        BlockEntry(block=b.name, path=b.path, kind=b.kind, heads=[head.index for head in b.heads], of=b.n_original) for b in heads.blocks
    ]


def removed_of(heads: HeadMap) -> list[str]:
    """The addresses of the heads that are gone from a model."""
    return [f"{b.name}H{index}" for b in heads.blocks for index in range(b.n_original) if index not in {head.index for head in b.heads}]


def hash_files(folder: Path) -> dict[str, FileEntry]:
    """Size and hash of every file in a folder, heads.json apart."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != NAME)
    return {path.name: FileEntry(bytes=path.stat().st_size, sha256=sha256(path)) for path in files}


def _parse(path: Path, content: Any) -> Manifest:
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA:
        raise ArtefactError(
            f"{path} has schema version {version!r:.20}; this headcount reads {SCHEMA}. Install the version that wrote it, or a newer one."
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise ArtefactError(f"{path} is not valid: {'.'.join(map(str, first['loc']))}: {first['msg']}; save the model again") from error


def read(folder: Path) -> Manifest | None:
    """The manifest of a folder, or None where there is none."""
    path = folder / NAME
    return _parse(path, read_json(path)) if path.exists() else None


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raises ArtefactError naming the first file that is missing, renamed, cut short or changed."""
    for name, entry in manifest.files.items():
        if Path(name).name != name:
            raise ArtefactError(f"{folder / NAME} names a file outside the folder: {name!r:.80}; save the model again")
        path = folder / name
        if not is_file(path):
            raise ArtefactError(f"{path} is missing, though {NAME} lists it; restore it, or save the model again")
        if path.stat().st_size != entry.bytes:
            raise ArtefactError(
                f"{path} has {path.stat().st_size} bytes, {NAME} says {entry.bytes}: the file is cut short or was changed; restore it"
            )
        if sha256(path) != entry.sha256:
            raise ArtefactError(f"{path} does not match its hash in {NAME}: the file is damaged or was changed; restore it")
    weights = [path.name for path in folder.glob("*.safetensors") if path.name not in manifest.files]
    if weights:
        raise ArtefactError(f"{folder / weights[0]} is not listed in {NAME}: the folder mixes files of two models; take one out")
