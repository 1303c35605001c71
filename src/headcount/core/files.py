"""Files: read with size limits, hashed, and written atomically: a crash leaves either the old content or the new one."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import math
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from headcount.core.errors import ArtifactError

MAX_JSON = 10 * 2**20
FOLDER = "name a folder that save or save_pretrained wrote"
"""The default remedy where a file is missing."""
MAX_TENSORS = 100_000
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
        "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64}  # fmt: skip
"""Bits per element of the dtypes of safetensors."""
PARTIAL = ".partial"


class Problem(NamedTuple):
    """A problem of a file in a folder that headcount wrote: its kind, the path within the folder, and the message."""

    kind: Literal["damaged", "missing", "foreign"]
    path: str
    text: str


def before(operation: str, path: Path) -> None:
    """Called before every operation that changes the disk, so that fault tests can fail or crash there."""


def sha256(path: Path) -> str:
    """Returns the hash of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def canonical(content: Any) -> bytes:
    """Returns plain data as canonical JSON, for hashing; raises ValueError for NaN and infinity."""
    return json.dumps(content, sort_keys=True, allow_nan=False, separators=(",", ":")).encode()


def seal(content: Mapping[str, object]) -> str:
    """Returns the hash of a record without its seal."""
    return hashlib.sha256(canonical({name: value for name, value in content.items() if name != "seal"})).hexdigest()


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


def absolute_path(path: str | Path) -> str:
    """Returns the absolute path of an existing file or folder; any other text unchanged."""
    try:
        return str(Path(path).absolute()) if Path(path).exists() else str(path)
    except (OSError, ValueError):
        return str(path)


def opened_model(name: str | Path) -> dict[str, str]:
    """Returns the absolute path of a model folder under the key `model`; empty for hub ids and embedded models, which their name identifies."""
    return {"model": absolute_path(name)} if absolute_path(name) != str(name) or Path(name).is_absolute() else {}


def reopened_model(name: str, config: Mapping[str, Any]) -> str:
    """Returns where to open the model of a run again: the path in `config["opened"]`, else its name."""
    return (config.get("opened") or {}).get("model", name)


def read_json(path: Path, *, unique: bool = False, remedy: str = FOLDER) -> Any:
    """Returns the content of a JSON file of bounded size; raises ArtifactError naming the file. `unique` refuses duplicate names."""
    try:
        return json.loads(read_bounded(path, MAX_JSON, remedy).decode("utf-8-sig"), object_pairs_hook=_unique if unique else None)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{path} is no valid JSON: {error}; restore or rewrite it") from error


def read_bounded(path: Path, most: int, remedy: str = FOLDER) -> bytes:
    """Returns the bytes of a regular file of at most `most` bytes; raises ArtifactError naming the file, and the remedy if it is missing."""
    try:
        if not path.exists():
            raise ArtifactError(f"{path} is missing; {remedy}")
        if not path.is_file():
            raise ArtifactError(f"{path} is no regular file; put the file itself there")
        size = path.stat().st_size
        if size > most:
            raise ArtifactError(f"{path} has {size} bytes; files of this kind have at most {most}")
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}. Check its permissions and links") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):  # json would silently use the last
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
    fresh = path.with_name(f".{_short(path.name)}.{os.getpid()}{PARTIAL}")
    try:
        before("create", fresh)
        with fresh.open("wb") as file:
            before("write", fresh)
            file.write(content)
            file.flush()
            before("sync", fresh)
            os.fsync(file.fileno())
        before("rename", path)
        fresh.replace(path)
        before("sync", path.parent)
        _sync_one(path.parent)
    except OSError as error:
        _drop(fresh)
        raise ArtifactError(_not_written(path, error, len(content))) from error
    except BaseException:
        _drop(fresh)
        raise


def _drop(path: Path) -> None:
    """Removes a file if possible; a leftover is removed by the next process."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _short(name: str) -> str:
    """Returns the first 200 bytes of a name: file systems allow 255, and prefix and suffix are added."""
    return os.fsdecode(os.fsencode(name)[:200])


def make_folder(path: Path) -> None:
    """Creates a folder and its parents where they are missing; they survive a power failure."""
    try:
        if path.is_dir():
            return
        make_folder(path.parent)
        before("mkdir", path)
        path.mkdir(exist_ok=True)
        before("sync", path.parent)
        _sync_one(path.parent)
    except (OSError, ValueError) as error:
        raise error if isinstance(error, ArtifactError) else ArtifactError(_not_written(path, error)) from error


def move(path: Path, target: Path) -> None:
    """Renames a file, replacing one of that name."""
    try:
        before("rename", target)
        path.replace(target)
    except OSError as error:
        raise ArtifactError(_not_written(target, error)) from error


def remove(path: Path) -> None:
    """Removes a file, if it is there."""
    try:
        before("remove", path)
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ArtifactError(f"{path} could not be removed: {error}") from error


def remove_folder(path: Path) -> None:
    """Removes a folder with everything in it."""
    try:
        before("remove", path)
        shutil.rmtree(path)
    except OSError as error:
        raise ArtifactError(f"{path} could not be removed: {error}") from error


def append_line(path: Path, text: str) -> None:
    """Appends a line to a log that no program reads, so that a truncated last line does no harm."""
    line = (" ".join(text.splitlines()) + "\n").encode(errors="backslashreplace")
    try:
        before("append", path)
        with path.open("ab") as file:
            file.write(line)
    except OSError as error:
        raise ArtifactError(_not_written(path, error, len(line))) from error


def _not_written(path: Path, error: Exception, needed: int | None = None) -> str:
    """Returns the message for a file that could not be written, with the free space if the disk is full."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return f"{path} could not be written: {error}. The previous content is unharmed."
    above = next(folder for folder in path.absolute().parents if folder.exists())
    size = "" if needed is None else f" {needed:,} bytes are needed,"
    return (
        f"{path} could not be written: the disk is full:{size} {shutil.disk_usage(above).free:,} are free. "
        "The previous content is unharmed; make room and run the same command again."
    )


def check_safetensors(path: Path) -> dict[str, tuple[int, ...]]:
    """Returns the tensor shapes that a safetensors file declares; raises ArtifactError if it is truncated or its header is inconsistent."""
    try:
        if not path.is_file():
            raise ArtifactError(f"{path} is no regular file; put the weights themselves there")
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
            if not 0 < length <= size - 8:
                raise ArtifactError(
                    f"{path} is no complete safetensors file: its {size} bytes do not hold the header that they announce; fetch it again"
                )
            if length > MAX_JSON:
                raise ArtifactError(f"{path} has a header of {length} bytes; at most {MAX_JSON} are read. Split the model into shards")
            text = file.read(length)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}. Check its permissions and links") from error
    try:
        tensors = {name: entry for name, entry in json.loads(text, object_pairs_hook=_unique).items() if name != "__metadata__"}
        if len(tensors) > MAX_TENSORS:
            raise ArtifactError(f"{path} declares {len(tensors)} tensors; at most {MAX_TENSORS} are read. Split the model into shards")
        shapes = {name: tuple(int(n) for n in entry["shape"]) for name, entry in tensors.items()}
        ranges = sorted((int(entry["data_offsets"][0]), int(entry["data_offsets"][1]), name) for name, entry in tensors.items())
        end = _end(path, ranges)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{path} has a damaged safetensors header: {error}; fetch the file again") from error
    if 8 + length + end != size:
        raise ArtifactError(f"{path} is damaged: its header promises {8 + length + end} bytes, it has {size}; fetch it again")
    for begin, last, name in ranges:
        shape, bits = shapes[name], BITS.get(tensors[name].get("dtype"))
        if min(shape, default=0) < 0 or (bits is not None and (math.prod(shape) * bits + 7) // 8 != last - begin):
            raise ArtifactError(
                f"{path} is damaged: tensor {name!r:.80} has the shape {shape!s:.80} and {last - begin} bytes; fetch the file again"
            )
    return shapes


def _end(path: Path, ranges: list[tuple[int, int, str]]) -> int:
    """Returns the byte after the last tensor; raises ArtifactError unless tensors follow each other without a gap."""
    last = 0
    for begin, end, name in ranges:
        if begin != last or end < begin:
            raise ArtifactError(
                f"{path} is damaged: tensor {name!r:.80} lies at bytes {begin} to {end}, the one before ends at {last}; fetch it again"
            )
        last = end
    return last


def sync_folder(folder: Path) -> None:
    """Flushes everything in a folder to the disk, with the permissions of the user's umask."""
    mask = os.umask(0)
    os.umask(mask)
    for path in [*folder.rglob("*"), folder]:
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)  # temporary files are private, a saved model is not
        _sync_one(path)


def _sync_one(path: Path) -> None:
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


def check_target(target: Path, overwrite: bool, marker: str) -> None:
    """Raises ArtifactError for a folder that is not empty, unless headcount wrote it (it holds `marker`) and `overwrite` is set."""
    if is_file(target):
        raise ArtifactError(f"{target} is a file; name a folder to write to")
    check_writable(target)
    finish_replacement(target)
    if not target.exists() or not any(target.iterdir()):
        return
    if not overwrite:
        raise ArtifactError(f"{target} is not empty; name another folder, or allow overwriting (overwrite=True)")
    if not (target / marker).is_file():
        raise ArtifactError(f"{target} was not written by headcount (it has no {marker}), so it is not overwritten; name another folder")


@contextmanager
def new_folder(target: Path, *, overwrite: bool = False, marker: str = "heads.json") -> Iterator[Path]:
    """Yields a folder that is renamed to `target` when everything in it is written, and removed if anything fails."""
    target = target.resolve()
    check_target(target, overwrite, marker)
    if target in (Path.cwd(), *Path.cwd().parents):
        raise ArtifactError(f"{target} is the folder you are in, which cannot be replaced; name another one")
    fresh: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        before("mkdir", target)
        fresh = Path(tempfile.mkdtemp(prefix=f".{_short(target.name)}.", suffix=PARTIAL, dir=target.parent))
        yield fresh
        before("sync", fresh)
        sync_folder(fresh)
        _replace_folder(fresh, target)
    except OSError as error:
        raise ArtifactError(_not_written(target, error)) from error
    finally:
        if fresh is not None:
            shutil.rmtree(fresh, ignore_errors=True)


def _replace_folder(fresh: Path, target: Path) -> None:
    """Renames a finished folder to `target`; if the process is killed, the old or the new folder is there, or `finish_replacement` can restore it.

    After an exchange `fresh` is the old folder, which the caller removes.
    """
    if not target.exists() or not any(target.iterdir()):
        before("rename", target)
        fresh.rename(target)
    else:
        before("exchange", target)
        if not _exchange(fresh, target):
            _replace_in_steps(fresh, target)
    before("sync", target.parent)
    _sync_one(target.parent)
    before("remove", fresh)


UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM)
"""Errors of a kernel, file system or sandbox that cannot exchange two names."""


def _exchange(first: Path, second: Path) -> bool:
    """Swaps the names of two folders atomically; returns False if system or file system cannot."""
    names = os.fsencode(first), os.fsencode(second)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            code = libc.renamex_np(*names, ctypes.c_uint(2))  # RENAME_SWAP
        else:
            here = ctypes.c_int(-100)  # AT_FDCWD
            code = libc.renameat2(here, names[0], here, names[1], ctypes.c_uint(2))  # RENAME_EXCHANGE
    except (AttributeError, OSError, TypeError):  # a C library without the call, or none
        return False
    number = ctypes.get_errno()
    if code and number not in UNSUPPORTED:
        raise OSError(number, os.strerror(number), str(second))
    return not code


def _aside(target: Path) -> tuple[Path, Path]:
    """Returns the temporary names of the complete new folder and of the old one during a replacement in steps."""
    name = f".{_short(target.name)}.{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:8]}"
    return target.with_name(f"{name}.complete"), target.with_name(f"{name}.replaced")


def _replace_in_steps(fresh: Path, target: Path) -> None:
    """Replaces a folder by several renames; `finish_replacement` completes them if the process is killed in between."""
    complete, replaced = _aside(target)
    for leftover in (complete, replaced):  # of a process that died
        shutil.rmtree(leftover, ignore_errors=True)
    before("rename", complete)
    fresh.rename(complete)
    try:
        before("rename", replaced)
        target.rename(replaced)
        before("rename", target)
        complete.rename(target)
    except BaseException as error:
        if isinstance(error, FileNotFoundError) and target.is_dir() and not complete.exists():
            pass  # another process found the folder between two renames and finished them
        else:
            if not target.exists() and replaced.exists():
                replaced.rename(target)
            shutil.rmtree(complete, ignore_errors=True)
            raise
    before("remove", replaced)
    shutil.rmtree(replaced, ignore_errors=True)


def finish_replacement(target: Path) -> None:
    """Completes the replacement of a folder that a killed process left unfinished; else does nothing."""
    try:
        target = target.resolve()
        complete, replaced = _aside(target)
        is_interrupted = not target.exists() and complete.is_dir() and replaced.is_dir()
    except (OSError, ValueError, RuntimeError):  # an impossible path: opening it raises the error
        return
    if not is_interrupted:
        return
    try:
        complete.rename(target)
    except OSError as error:
        if not target.is_dir():  # else another process finished it meanwhile
            raise ArtifactError(
                f"{target} was being replaced by a process that was killed; its new content is complete in {complete}, which could not be "
                f"renamed: {error.strerror}. Rename it to {target.name}"
            ) from error
    shutil.rmtree(replaced, ignore_errors=True)
