"""heads.json: what was cut from a saved model, under original addresses, the hash of every file beside it, and a seal over all of that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headcount.core.errors import ArtifactError
from headcount.core.files import MAX_JSON, Problem, add_seal, is_file, json_bytes, read_bounded, read_json, seal, sha256, write_atomic
from headcount.models.head_map import HeadMap

NAME = "heads.json"
SCHEMA = 2
OLDER = {1: "0.1.0"}
"""Schemas of earlier releases, and the release to open their folders with."""
READ_BY_LOAD = ("*.safetensors", "*.bin", "*.index.json", "*.pt", "*.pth", "*.gguf", "*.distcp", "*.py", "config.json", "generation_config.json",
                "adapter_config.json", "adapter_model*")  # fmt: skip
"""What transformers reads of a folder beside tokenizers and processors, which may be put there later: nothing of it may be unlisted."""


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
    notes: list[str] = []
    named_heads: dict[str, list[list[int]]] = {}
    """Configuration fields that name heads as [layer, head], by dotted name, in original indices; a cut renumbers the fields themselves."""
    files: dict[str, FileEntry]


def block_entries(heads: HeadMap) -> list[BlockEntry]:
    """The entries of a live model's blocks."""
    return [
        BlockEntry(block=b.name, path=b.path, kind=b.kind, heads=[head.index for head in b.heads], of=b.n_original) for b in heads.blocks
    ]


def removed_addresses(heads: HeadMap) -> list[str]:
    """The addresses of the heads that are gone from a model."""
    return [f"{b.name}H{index}" for b in heads.blocks for index in range(b.n_original) if index not in {head.index for head in b.heads}]


def hash_files(folder: Path) -> dict[str, FileEntry]:
    """Size and hash of every file in a folder, heads.json apart."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != NAME)
    return {path.name: FileEntry(bytes=path.stat().st_size, sha256=sha256(path)) for path in files}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes heads.json with its seal."""
    write_atomic(folder / NAME, _manifest_bytes(manifest))


def _manifest_bytes(manifest: Manifest) -> bytes:
    return json_bytes(add_seal(manifest.model_dump()))


def _check_seal_and_version(manifest_file: Path, content: Any) -> None:
    """Raises ArtifactError for a file that is damaged or was edited, and for another schema than this release's."""
    version = content.get("schema_version") if isinstance(content, dict) else None
    is_older = isinstance(content, dict) and "seal" not in content and type(version) is int and version in OLDER
    if not is_older and (not isinstance(content, dict) or content.get("seal") != seal(content)):
        raise ArtifactError(
            f"{manifest_file} is damaged or was edited: its content does not match its seal; restore it, or save the model again"
        )
    if version != SCHEMA:
        release = OLDER.get(version) if type(version) is int else None
        remedy = f"open the folder with headcount {release}" if release else "install a newer headcount to open the folder"
        raise ArtifactError(f"{manifest_file} has schema version {version!r:.20} and this headcount reads {SCHEMA}; {remedy}.")


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder, its seal checked; None where there is none."""
    path = folder / NAME
    if not path.exists():
        return None
    content = read_json(path, unique_names=True)
    _check_seal_and_version(path, content)
    try:
        manifest = Manifest.model_validate({name: value for name, value in content.items() if name != "seal"})
    except ValidationError as error:
        first = error.errors()[0]
        raise ArtifactError(f"{path} is not valid: {'.'.join(map(str, first['loc']))}: {first['msg']}; save the model again") from error
    if read_bounded(path, MAX_JSON) != _manifest_bytes(manifest):
        raise ArtifactError(f"{path} is damaged or was edited: it is not written as save writes it; restore it, or save the model again")
    return manifest


def file_problems(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    """Every file of a saved model that is missing, damaged, or not part of it."""
    for name, entry in manifest.files.items():
        path = folder / name
        if Path(name).name != name:
            yield Problem("damaged", NAME, f"{folder / NAME} names a file outside the folder: {name!r:.80}; save the model again")
        elif not is_file(path):
            yield Problem("missing", name, f"{path} is missing, though {NAME} lists it; restore it, or save the model again")
        elif path.stat().st_size != entry.bytes:
            yield Problem(
                "damaged",
                name,
                f"{path} has {path.stat().st_size} bytes, {NAME} says {entry.bytes}: the file is cut short or was changed; restore it",
            )
        elif sha256(path) != entry.sha256:
            yield Problem("damaged", name, f"{path} does not match its hash in {NAME}: the file is damaged or was changed; restore it")
    there = {path.name for pattern in READ_BY_LOAD for path in folder.glob(pattern)}
    for name in sorted(there - set(manifest.files)):
        yield Problem("foreign", name, f"{folder / name} is not listed in {NAME}: the folder mixes files of two models; take one out")


def manifest_and_file_problems(folder: Path) -> Iterator[Problem]:
    """Every problem of a saved model by its folder, its manifest included."""
    try:
        manifest = read_manifest(folder)
        if manifest is None:
            yield Problem("missing", NAME, f"{folder / NAME} is missing, so the files of the model cannot be checked; save the model again")
        else:
            yield from file_problems(folder, manifest)
    except (ArtifactError, OSError) as error:
        yield Problem("damaged", NAME, str(error))


def check_files_match(folder: Path, manifest: Manifest) -> None:
    """Raises ArtifactError naming the first file that is missing, renamed, cut short, changed or foreign."""
    try:
        first = next(file_problems(folder, manifest), None)
    except OSError as error:
        raise ArtifactError(f"{folder} cannot be read: {error}. Check its permissions and links") from error
    if first is not None:
        raise ArtifactError(first.text)


def check_heads_match(folder: Path, manifest: Manifest, heads: HeadMap) -> None:
    """Raises ArtifactError unless a loaded model has just the heads that its manifest lists."""
    listed = {entry.block: (entry.heads, entry.of) for entry in manifest.blocks}
    there = {entry.block: (entry.heads, entry.of) for entry in block_entries(heads)}
    different = [name for name in {**listed, **there} if listed.get(name) != there.get(name)]
    if different or removed_addresses(heads) != manifest.removed:
        raise ArtifactError(
            f"{folder / NAME} lists other heads than the model has (block {different[0] if different else 'removed'}); save the model again"
        )
