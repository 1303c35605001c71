"""Single files: read with size limits, hashed, and written atomically: a crash leaves either the old content or the new one."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from headcount.core.errors import ArtifactError

MAX_JSON = 10 * 2**20
FOLDER = "name a folder that save or save_pretrained wrote"
"""The default remedy where a file is missing."""
PARTIAL = ".partial"


class Problem(NamedTuple):
    """A problem of a file in a folder that headcount wrote: its kind, the path within the folder, and the message."""

    kind: Literal["damaged", "missing", "foreign"]
    path: str
    text: str


def before_disk_change(operation: str, path: Path) -> None:
    """Called before every operation that changes the disk, so that fault tests can fail or crash there."""


def sha256(path: Path) -> str:
    """Returns the hash of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def canonical_json(content: Any) -> bytes:
    """Returns plain data as canonical JSON, for hashing; raises ValueError for NaN and infinity."""
    return json.dumps(content, sort_keys=True, allow_nan=False, separators=(",", ":")).encode()


def seal(content: Mapping[str, object]) -> str:
    """Returns the hash of a record without its seal."""
    return hashlib.sha256(canonical_json({name: value for name, value in content.items() if name != "seal"})).hexdigest()


def add_seal(content: Mapping[str, object]) -> dict[str, object]:
    """Returns a record with its seal as the last field."""
    record = {name: value for name, value in content.items() if name != "seal"}
    return {**record, "seal": seal(record)}


def is_file(path: Path) -> bool:
    """Whether a path is that of a regular file; False for impossible paths (too long, a loop of links, no permission)."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether a path is that of a folder; False for impossible paths."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def path_exists(path: Path) -> bool:
    """Whether a path is that of anything; False for impossible paths."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def absolute_path_if_exists(path: str | Path) -> str:
    """Returns the absolute path of an existing file or folder; any other text unchanged."""
    return str(Path(path).absolute()) if path_exists(Path(path)) else str(path)


def model_path_entry(model: str | Path) -> dict[Literal["model"], str]:
    """Returns the absolute path of a model folder under the key `model`; empty for hub ids and embedded models, which their name identifies."""
    return {"model": absolute_path_if_exists(model)} if absolute_path_if_exists(model) != str(model) or Path(model).is_absolute() else {}


def model_path_or_name(model_name: str, run_config: Mapping[str, object]) -> str:
    """Returns where to open the model of a run again: the path in `run_config["opened"]`, else its name."""
    opening = run_config.get("opened")
    return opening.get("model", model_name) if isinstance(opening, Mapping) else model_name


def read_json(path: Path, *, unique_names: bool = False, remedy_if_missing: str = FOLDER) -> Any:
    """Returns the content of a JSON file of bounded size; raises ArtifactError naming the file. `unique_names` refuses duplicate names."""
    try:
        return json.loads(
            read_bounded(path, MAX_JSON, remedy_if_missing).decode("utf-8-sig"),
            object_pairs_hook=fields_without_duplicates if unique_names else None,
        )
    except (ValueError, RecursionError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{path} is no valid JSON: {error}; restore or rewrite it") from error


def read_bounded(path: Path, max_bytes: int, remedy_if_missing: str = FOLDER) -> bytes:
    """Returns the bytes of a regular file of at most `max_bytes` bytes; raises ArtifactError naming the file, and the remedy if it is missing."""
    try:
        if not path.exists():
            raise ArtifactError(f"{path} is missing; {remedy_if_missing}")
        if not path.is_file():
            raise ArtifactError(f"{path} is no regular file; put the file itself there")
        size = path.stat().st_size
        if size > max_bytes:
            raise ArtifactError(f"{path} has {size} bytes; files of this kind have at most {max_bytes}")
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}. Check its permissions and links") from error


def fields_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the fields of a JSON object; raises ValueError for a name that comes twice, of which json would silently use the last."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"{duplicate!r:.60} comes twice")
    return content


def write_json(path: Path, content: Any) -> None:
    """Writes indented JSON without NaN."""
    write_atomic(path, json_bytes(content))


def json_bytes(content: Any) -> bytes:
    """Returns indented JSON without NaN."""
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()


def write_atomic(path: Path, content: bytes) -> None:
    """Writes a file atomically: if anything fails, the old content stays; the new content survives a power failure."""
    fresh = path.with_name(f".{truncate_file_name(path.name)}.{os.getpid()}{PARTIAL}")
    try:
        before_disk_change("create", fresh)
        with fresh.open("wb") as file:
            before_disk_change("write", fresh)
            file.write(content)
            file.flush()
            before_disk_change("sync", fresh)
            os.fsync(file.fileno())
        before_disk_change("rename", path)
        fresh.replace(path)
        before_disk_change("sync", path.parent)
        sync_path(path.parent)
    except OSError as error:
        _remove_if_possible(fresh)
        raise ArtifactError(describe_write_error(path, error, len(content))) from error
    except BaseException:
        _remove_if_possible(fresh)
        raise


def _remove_if_possible(path: Path) -> None:
    """Removes a file if possible; a leftover is removed by the next process."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def truncate_file_name(name: str) -> str:
    """Returns the first 200 bytes of a name: file systems allow 255, and prefix and suffix are added."""
    return os.fsdecode(os.fsencode(name)[:200])


def make_folder(path: Path) -> None:
    """Creates a folder and its parents where they are missing; they survive a power failure."""
    try:
        if path.is_dir():
            return
        make_folder(path.parent)
        before_disk_change("mkdir", path)
        path.mkdir(exist_ok=True)
        before_disk_change("sync", path.parent)
        sync_path(path.parent)
    except (OSError, ValueError) as error:
        raise error if isinstance(error, ArtifactError) else ArtifactError(describe_write_error(path, error)) from error


def move(path: Path, target: Path) -> None:
    """Renames a file, replacing one of that name."""
    try:
        before_disk_change("rename", target)
        path.replace(target)
    except OSError as error:
        raise ArtifactError(describe_write_error(target, error)) from error


def remove(path: Path) -> None:
    """Removes a file, if it is there."""
    try:
        before_disk_change("remove", path)
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ArtifactError(f"{path} could not be removed: {error}") from error


def remove_folder(path: Path) -> None:
    """Removes a folder with everything in it."""
    try:
        before_disk_change("remove", path)
        shutil.rmtree(path)
    except OSError as error:
        raise ArtifactError(f"{path} could not be removed: {error}") from error


def append_line(path: Path, text: str) -> None:
    """Appends a line to a log that no program reads, so that a truncated last line does no harm."""
    line = (" ".join(text.splitlines()) + "\n").encode(errors="backslashreplace")
    try:
        before_disk_change("append", path)
        with path.open("ab") as file:
            file.write(line)
    except OSError as error:
        raise ArtifactError(describe_write_error(path, error, len(line))) from error


def describe_write_error(path: Path, error: Exception, n_bytes_needed: int | None = None) -> str:
    """Returns the message for a file that could not be written, with the free space if the disk is full."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return f"{path} could not be written: {error}. The previous content is unharmed."
    above = next(folder for folder in path.absolute().parents if folder.exists())
    size = "" if n_bytes_needed is None else f" {n_bytes_needed:,} bytes are needed,"
    return (
        f"{path} could not be written: the disk is full:{size} {shutil.disk_usage(above).free:,} are free. "
        "The previous content is unharmed; make room and run the same command again."
    )


def sync_path(path: Path) -> None:
    """Flushes one file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_writable(target: Path) -> None:
    """Raises ArtifactError if a file or folder cannot be created at `target`, before any work is done for it."""
    try:
        above = next(path for path in target.absolute().parents if path.exists())
        target.exists()
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{target!s:.200} cannot be created: {getattr(error, 'strerror', None) or error}; name another path") from error
    if not above.is_dir():
        raise ArtifactError(f"{target} cannot be created: {above} is a file, not a folder; name another path")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ArtifactError(f"{target} cannot be created: {above} is not writable for you; name another path")


def hash_file_or_folder(path: Path) -> str:
    """Returns the hash of a file, or of the names and contents of all files of a folder."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(os.fsencode(file.relative_to(path)) + b"\0" + bytes.fromhex(sha256(file)))
    return digest.hexdigest()
