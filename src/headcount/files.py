"""Files: read with limits, hashed, and written so that a crash leaves the old state or the new one, nothing between."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headcount.errors import ArtefactError

MAX_JSON = 10 * 2**20
MAX_TENSORS = 100_000


def sha256(path: Path) -> str:
    """The hash of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def read_json(path: Path) -> Any:
    """The content of a JSON file of bounded size; raises ArtefactError naming the file."""
    try:
        size = path.stat().st_size
        if size > MAX_JSON:
            raise ArtefactError(f"{path} has {size} bytes; files of this kind have at most {MAX_JSON}")
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtefactError(f"{path} is missing; name a folder that save or save_pretrained wrote") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtefactError(f"{path} is no valid JSON: {error}") from error


def write_json(path: Path, content: Any) -> None:
    """Writes JSON without NaN, readable by people."""
    write_atomic(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def write_atomic(path: Path, content: bytes) -> None:
    """Writes a file that is there in full or, if anything fails, as it was before; a finished one survives a loss of power."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        _sync_one(path.parent)
    except OSError as error:
        raise ArtefactError(f"{path} could not be written: {error}. What was there before is unharmed.") from error
    finally:
        fresh.unlink(missing_ok=True)


def check_safetensors(path: Path) -> dict[str, tuple[int, ...]]:
    """The tensor shapes that a safetensors file declares; raises ArtefactError if it is cut short or its header is out of bounds."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 0 < length <= min(MAX_JSON * 10, size - 8):
            raise ArtefactError(f"{path} is no complete safetensors file: its {size} bytes do not hold the header that they announce")
        try:
            header = json.loads(file.read(length))
            tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
            end = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
            shapes = {name: tuple(int(n) for n in entry["shape"]) for name, entry in tensors.items()}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise ArtefactError(f"{path} has a damaged safetensors header: {error}") from error
    if len(tensors) > MAX_TENSORS:
        raise ArtefactError(f"{path} declares {len(tensors)} tensors; at most {MAX_TENSORS} are read")
    if 8 + length + end != size:
        raise ArtefactError(f"{path} is damaged: its header promises {8 + length + end} bytes, it has {size}")
    return shapes


def _sync(folder: Path) -> None:
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
    above = next(path for path in target.absolute().parents if path.exists())
    if not above.is_dir():
        raise ArtefactError(f"{target} cannot be made: {above} is a file, not a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ArtefactError(f"{target} cannot be made: {above} is not writable for you; name another place")


def check_target(target: Path, overwrite: bool, marker: str) -> None:
    """Refuses a folder that holds something, unless it is ours (holds `marker`) and may be overwritten."""
    if target.is_file():
        raise ArtefactError(f"{target} is a file; name a folder to write to")
    check_place(target)
    if not target.exists() or not any(target.iterdir()):
        return
    if not overwrite:
        raise ArtefactError(f"{target} is not empty; name another folder, or allow overwriting (overwrite=True, --overwrite)")
    if not (target / marker).is_file():
        raise ArtefactError(f"{target} was not written by headcount (it has no {marker}), so it is not overwritten; name another folder")


@contextmanager
def new_folder(target: Path, *, overwrite: bool = False, marker: str = "heads.json") -> Iterator[Path]:
    """A folder to fill that takes the name `target` only when everything in it is written; removed if anything fails."""
    target = target.resolve()
    check_target(target, overwrite, marker)
    if target in (Path.cwd(), *Path.cwd().parents):
        raise ArtefactError(f"{target} is the folder you are in, which cannot be replaced; name another one")
    fresh: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
        yield fresh
        _sync(fresh)
        _take_place(fresh, target)
    except OSError as error:
        raise ArtefactError(f"{target} could not be written: {error}. What was there before is unharmed.") from error
    finally:
        if fresh is not None:
            shutil.rmtree(fresh, ignore_errors=True)


def _take_place(fresh: Path, target: Path) -> None:
    """Renames a finished folder to its place; one that was there goes aside first, and comes back if anything interrupts."""
    if not target.exists() or not any(target.iterdir()):
        fresh.rename(target)
        return
    aside = fresh.with_suffix(".old")
    target.rename(aside)
    try:
        fresh.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    shutil.rmtree(aside)
