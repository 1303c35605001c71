"""The sealed JSON files of a run: each has the hash of what it says, and is written in one way only, so that damage and edits are found out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from headcount.core.errors import ArtifactError
from headcount.core.files import add_seal, json_bytes, read_json, seal, write_atomic
from headcount.runs.artifacts import Damaged
from headcount.runs.schema import VERSION, Record, other_version

Kind = TypeVar("Kind", bound=Record)


def read_record(path: Path, kind: type[Kind]) -> Kind:
    """A sealed file of a run, checked; ArtifactError says what is wrong with it, Damaged if it is not what was written."""
    content = _sealed(path)
    told = content.get("schema_version")
    if type(told) is not int:
        raise Damaged(f"{path} is damaged: it holds another file of a run")
    if told != VERSION:
        raise ArtifactError(other_version(path, told))
    try:
        found = kind.model_validate({name: value for name, value in content.items() if name != "seal"})
    except ValidationError as error:
        first = error.errors()[0]
        raise Damaged(f"{path} is damaged: it is no {kind.__name__}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if path.read_bytes() != _packed(found):
        raise Damaged(f"{path} is damaged or was edited: it is not written as it was")
    return found


def _sealed(path: Path) -> dict[str, Any]:
    """The content of a file whose seal is right; files of schema 1 had none."""
    try:
        content = read_json(path, remedy="copy the run folder again with all its files, or run its command again")
    except ArtifactError as error:
        if not path.is_file():
            raise
        raise Damaged(str(error)) from error
    whole = isinstance(content, dict) and content.get("seal") == seal(content)
    old = isinstance(content, dict) and "seal" not in content and type(content.get("schema_version")) is int
    if not whole and not (old and content["schema_version"] != VERSION):
        raise Damaged(
            f"{path} is damaged or was edited: its hash is not the one that was written. Run the command of the run again, or restore it"
        )
    return content


def _packed(record: Record) -> bytes:
    return json_bytes(add_seal(record.model_dump()))


def write_record(path: Path, record: Record) -> None:
    """Writes a file of a run, sealed with its hash."""
    write_atomic(path, _packed(record))


def hash_of(record: Record) -> str:
    """The hash of what a record says, by which another record names it."""
    return seal(record.model_dump())
