"""Files: read with limits, hashed, and written so that a crash leaves the old state or the new one, nothing between."""

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
"""What helps where a file is missing, unless something else does."""
MAX_TENSORS = 100_000
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
        "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64}  # fmt: skip
"""Bits of an element by the names that safetensors has for its types."""
PARTIAL = ".partial"


class Problem(NamedTuple):
    """What is wrong with a file of a folder that headcount wrote, by its path there, and the sentence about it."""

    kind: Literal["damaged", "missing", "foreign"]
    path: str
    text: str


def before(operation: str, path: Path) -> None:
    """Called before every operation that changes a disk, so that the tests of faults can fail or crash at each of them."""


def sha256(path: Path) -> str:
    """The hash of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def canonical(content: Any) -> bytes:
    """The one way to write plain data as JSON, for hashing; refuses numbers that are not finite."""
    return json.dumps(content, sort_keys=True, allow_nan=False, separators=(",", ":")).encode()


def seal(content: Mapping[str, object]) -> str:
    """The hash of a record without its seal."""
    return hashlib.sha256(canonical({name: value for name, value in content.items() if name != "seal"})).hexdigest()


def add_seal(content: Mapping[str, object]) -> dict[str, object]:
    """A record with its seal as the last field."""
    record = {name: value for name, value in content.items() if name != "seal"}
    return {**record, "seal": seal(record)}


def is_file(path: Path) -> bool:
    """Whether a path, which may be no possible one (too long, a loop of links, not to be looked at), is that of a regular file."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether a path, which may be no possible one, is that of a folder."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def placed(path: str | Path) -> str:
    """The absolute path of what is on this machine, so that it is found from any folder; any other name as it is."""
    try:
        return str(Path(path).absolute()) if Path(path).exists() else str(path)
    except (OSError, ValueError):
        return str(path)


def opened_model(name: str | Path) -> dict[str, str]:
    """Where a model is opened again: the absolute path of a folder; nothing for hub ids and embedded models, which their name finds."""
    return {"model": placed(name)} if placed(name) != str(name) or Path(name).is_absolute() else {}


def reopened_model(name: str, config: Mapping[str, Any]) -> str:
    """Where the model of a run is opened again: as the configuration of the run says (`config.opened`), else by its name."""
    return (config.get("opened") or {}).get("model", name)


def read_json(path: Path, *, unique: bool = False, remedy: str = FOLDER) -> Any:
    """The content of a JSON file of bounded size; raises ArtifactError naming the file. `unique` refuses names that come twice."""
    try:
        return json.loads(read_bounded(path, MAX_JSON, remedy).decode("utf-8-sig"), object_pairs_hook=_unique if unique else None)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{path} is no valid JSON: {error}; restore or rewrite it") from error


def read_bounded(path: Path, most: int, remedy: str = FOLDER) -> bytes:
    """The bytes of a regular file of at most `most` bytes; raises ArtifactError naming the file, and the remedy where it is missing."""
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
    found = dict(pairs)
    if len(found) < len(pairs):  # JSON would keep the last in silence
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"{twice!r:.60} comes twice")
    return found


def write_json(path: Path, content: Any) -> None:
    """Writes JSON without NaN, readable by people."""
    write_atomic(path, json_bytes(content))


def json_bytes(content: Any) -> bytes:
    """JSON without NaN, readable by people."""
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()


def write_atomic(path: Path, content: bytes) -> None:
    """Writes a file that is there in full or, if anything fails, as it was before; a finished one survives a loss of power."""
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
    """Removes a file if that is possible: whoever comes next removes what stays."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _short(name: str) -> str:
    """As much of a name as leaves room for what is put around it: file systems take 255 bytes."""
    return os.fsdecode(os.fsencode(name)[:200])


def make_folder(path: Path) -> None:
    """Makes a folder and those above it, where they are missing; they survive a loss of power."""
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
    """Renames a file, over one that may be there."""
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
    """Adds a line to a log that people read and no program does: a torn last line harms nothing."""
    line = (" ".join(text.splitlines()) + "\n").encode(errors="backslashreplace")
    try:
        before("append", path)
        with path.open("ab") as file:
            file.write(line)
    except OSError as error:
        raise ArtifactError(_not_written(path, error, len(line))) from error


def _not_written(path: Path, error: Exception, needed: int | None = None) -> str:
    """What could not be written and why, with the room there is where that was it."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return f"{path} could not be written: {error}. What was there before is unharmed."
    above = next(folder for folder in path.absolute().parents if folder.exists())
    size = "" if needed is None else f" {needed:,} bytes are needed,"
    return (
        f"{path} could not be written: the disk is full:{size} {shutil.disk_usage(above).free:,} are free. "
        "What was there before is unharmed; make room and run the same command again."
    )


def check_safetensors(path: Path) -> dict[str, tuple[int, ...]]:
    """The tensor shapes that a safetensors file declares; raises ArtifactError if it is cut short or its header is out of bounds."""
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
        places = sorted((int(entry["data_offsets"][0]), int(entry["data_offsets"][1]), name) for name, entry in tensors.items())
        end = _end(path, places)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{path} has a damaged safetensors header: {error}; fetch the file again") from error
    if 8 + length + end != size:
        raise ArtifactError(f"{path} is damaged: its header promises {8 + length + end} bytes, it has {size}; fetch it again")
    for begin, last, name in places:
        shape, bits = shapes[name], BITS.get(tensors[name].get("dtype"))
        if min(shape, default=0) < 0 or (bits is not None and (math.prod(shape) * bits + 7) // 8 != last - begin):
            raise ArtifactError(
                f"{path} is damaged: tensor {name!r:.80} has the shape {shape!s:.80} and {last - begin} bytes; fetch the file again"
            )
    return shapes


def _end(path: Path, places: list[tuple[int, int, str]]) -> int:
    """Where the last tensor ends; raises ArtifactError unless they follow each other without a gap."""
    last = 0
    for begin, end, name in places:
        if begin != last or end < begin:
            raise ArtifactError(
                f"{path} is damaged: tensor {name!r:.80} lies at bytes {begin} to {end}, the one before ends at {last}; fetch it again"
            )
        last = end
    return last


def sync_folder(folder: Path) -> None:
    """Makes sure that everything in a folder is on the disk, readable for whom the user lets read."""
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


def check_place(target: Path) -> None:
    """Refuses a place where nothing can be made, before work is done for it."""
    try:
        above = next(path for path in target.absolute().parents if path.exists())
        target.exists()
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{target!s:.200} cannot be made: {getattr(error, 'strerror', None) or error}; name another place") from error
    if not above.is_dir():
        raise ArtifactError(f"{target} cannot be made: {above} is a file, not a folder; name another place")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ArtifactError(f"{target} cannot be made: {above} is not writable for you; name another place")


def check_target(target: Path, overwrite: bool, marker: str) -> None:
    """Refuses a folder that holds something, unless it is ours (holds `marker`) and may be overwritten."""
    if is_file(target):
        raise ArtifactError(f"{target} is a file; name a folder to write to")
    check_place(target)
    finish_replacement(target)
    if not target.exists() or not any(target.iterdir()):
        return
    if not overwrite:
        raise ArtifactError(f"{target} is not empty; name another folder, or allow overwriting (overwrite=True, --overwrite)")
    if not (target / marker).is_file():
        raise ArtifactError(f"{target} was not written by headcount (it has no {marker}), so it is not overwritten; name another folder")


@contextmanager
def new_folder(target: Path, *, overwrite: bool = False, marker: str = "heads.json") -> Iterator[Path]:
    """A folder to fill that takes the name `target` only when everything in it is written; removed if anything fails."""
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
    """Gives a finished folder the name `target`; a kill at any moment leaves the old folder or the new one there, or both aside to finish from.

    After the exchange `fresh` is the old folder, for the caller to remove.
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
"""What the kernel answers where it, the file system or a sandbox cannot exchange two names."""


def _exchange(first: Path, second: Path) -> bool:
    """Swaps the names of two folders in one step of the kernel; False where the system or the file system cannot."""
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
    """Where a replacement in steps keeps the complete new folder, and the old one."""
    name = f".{_short(target.name)}.{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:8]}"
    return target.with_name(f"{name}.complete"), target.with_name(f"{name}.replaced")


def _replace_in_steps(fresh: Path, target: Path) -> None:
    """Replaces a folder by renames, between which `finish_replacement` knows how to go on."""
    complete, replaced = _aside(target)
    for leftover in (complete, replaced):  # of a process that died; the folder itself is there
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
            pass  # another process came upon the folder between two renames, and finished them
        else:
            if not target.exists() and replaced.exists():
                replaced.rename(target)
            shutil.rmtree(complete, ignore_errors=True)
            raise
    before("remove", replaced)
    shutil.rmtree(replaced, ignore_errors=True)


def finish_replacement(target: Path) -> None:
    """Finishes the replacement of a folder by a process that was killed between its renames; does nothing in any other case."""
    try:
        target = target.resolve()
        complete, replaced = _aside(target)
        is_interrupted = not target.exists() and complete.is_dir() and replaced.is_dir()
    except (OSError, ValueError, RuntimeError):  # no path that can be looked at: whoever opens it says why
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
