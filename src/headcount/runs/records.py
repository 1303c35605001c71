"""The sealed JSON files of a run: each holds the hash of its content and has one canonical form, so that damage and edits are detected."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from headcount.core.errors import ArtifactError
from headcount.core.files import add_seal, json_bytes, read_json, seal, write_atomic
from headcount.runs.artifacts import Damaged
from headcount.runs.schema import VERSION, Record, other_version_message

AnyRecord = TypeVar("AnyRecord", bound=Record)


def read_record(path: Path, record_type: type[AnyRecord]) -> AnyRecord:
    """Returns the record in a sealed file; raises Damaged if it is not what was written, ArtifactError for another schema version."""
    content = _read_json_with_seal(path)
    version = content.get("schema_version")
    if type(version) is not int:
        raise Damaged(f"{path} is damaged: it holds another file of a run")
    if version != VERSION:
        raise ArtifactError(other_version_message(path, version))
    try:
        record = record_type.model_validate({name: value for name, value in content.items() if name != "seal"})
    except ValidationError as error:
        first = error.errors()[0]
        raise Damaged(f"{path} is damaged: it is no {record_type.__name__}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if path.read_bytes() != _to_sealed_json(record):
        raise Damaged(f"{path} is damaged or was edited: it is not in the form in which it was written")
    return record


def _read_json_with_seal(path: Path) -> dict[str, Any]:
    """Returns the content of a file whose seal is right; files of schema 1 had no seal."""
    try:
        content = read_json(path, remedy_if_missing="copy the run folder again with all its files, or run its command again")
    except ArtifactError as error:
        if not path.is_file():
            raise
        raise Damaged(str(error)) from error
    is_sealed = isinstance(content, dict) and content.get("seal") == seal(content)
    is_unsealed = isinstance(content, dict) and "seal" not in content and type(content.get("schema_version")) is int
    if not is_sealed and not (is_unsealed and content["schema_version"] != VERSION):
        raise Damaged(
            f"{path} is damaged or was edited: its hash is not the one that was written. Run the command of the run again, or restore it"
        )
    return content


def _to_sealed_json(record: Record) -> bytes:
    return json_bytes(add_seal(record.model_dump()))


def write_record(path: Path, record: Record) -> None:
    """Writes a file of a run, sealed with its hash."""
    write_atomic(path, _to_sealed_json(record))


def hash_of_record(record: Record) -> str:
    """Returns the hash of a record's content, by which another record refers to it."""
    return seal(record.model_dump())
