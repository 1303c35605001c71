"""Folders that appear complete or not at all: written under a temporary name, then renamed, also over an older folder."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headcount.core import files
from headcount.core.errors import ArtifactError
from headcount.core.files import PARTIAL, check_writable, describe_write_error, is_file, sync_path, truncate_file_name


def set_permissions_and_sync(folder: Path) -> None:
    """Flushes everything in a folder to the disk, with the permissions of the user's umask."""
    mask = os.umask(0)
    os.umask(mask)
    for path in [*folder.rglob("*"), folder]:
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)  # temporary files are private, a saved model is not
        sync_path(path)


def check_output_folder(target: Path, overwrite: bool, marker_file: str) -> None:
    """Raises ArtifactError for a folder that is not empty, unless headcount wrote it (it holds `marker_file`) and `overwrite` is set."""
    if is_file(target):
        raise ArtifactError(f"{target} is a file; name a folder to write to")
    check_writable(target)
    finish_replacement(target)
    if not target.exists() or not any(target.iterdir()):
        return
    if not overwrite:
        raise ArtifactError(f"{target} is not empty; name another folder, or allow overwriting (overwrite=True)")
    if not (target / marker_file).is_file():
        raise ArtifactError(
            f"{target} was not written by headcount (it has no {marker_file}), so it is not overwritten; name another folder"
        )


@contextmanager
def new_folder(target: Path, *, overwrite: bool = False, marker_file: str = "heads.json") -> Iterator[Path]:
    """Yields a folder that is renamed to `target` when everything in it is written, and removed if anything fails."""
    target = target.resolve()
    check_output_folder(target, overwrite, marker_file)
    if target in (Path.cwd(), *Path.cwd().parents):
        raise ArtifactError(f"{target} is the folder you are in, which cannot be replaced; name another one")
    fresh: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        files.before_disk_change("mkdir", target)
        fresh = Path(tempfile.mkdtemp(prefix=f".{truncate_file_name(target.name)}.", suffix=PARTIAL, dir=target.parent))
        yield fresh
        files.before_disk_change("sync", fresh)
        set_permissions_and_sync(fresh)
        _replace_folder(fresh, target)
    except OSError as error:
        raise ArtifactError(describe_write_error(target, error)) from error
    finally:
        if fresh is not None:
            shutil.rmtree(fresh, ignore_errors=True)


def _replace_folder(fresh: Path, target: Path) -> None:
    """Renames a finished folder to `target`; if the process is killed, the old or the new folder is there, or `finish_replacement` can restore it.

    After an exchange `fresh` is the old folder, which the caller removes.
    """
    if not target.exists() or not any(target.iterdir()):
        files.before_disk_change("rename", target)
        fresh.rename(target)
    else:
        files.before_disk_change("exchange", target)
        if not _swap_names(fresh, target):
            _replace_in_steps(fresh, target)
    files.before_disk_change("sync", target.parent)
    sync_path(target.parent)
    files.before_disk_change("remove", fresh)


UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM)
"""Errors of a kernel, file system or sandbox that cannot exchange two names."""


def _swap_names(first: Path, second: Path) -> bool:
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


def _temporary_paths_of_new_and_old(target: Path) -> tuple[Path, Path]:
    """Returns the temporary names of the complete new folder and of the old one during a replacement in steps."""
    name = f".{truncate_file_name(target.name)}.{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:8]}"
    return target.with_name(f"{name}.complete"), target.with_name(f"{name}.replaced")


def _replace_in_steps(fresh: Path, target: Path) -> None:
    """Replaces a folder by several renames; `finish_replacement` completes them if the process is killed in between."""
    complete, replaced = _temporary_paths_of_new_and_old(target)
    for leftover in (complete, replaced):  # of a process that died
        shutil.rmtree(leftover, ignore_errors=True)
    files.before_disk_change("rename", complete)
    fresh.rename(complete)
    try:
        files.before_disk_change("rename", replaced)
        target.rename(replaced)
        files.before_disk_change("rename", target)
        complete.rename(target)
    except BaseException as error:
        if isinstance(error, FileNotFoundError) and target.is_dir() and not complete.exists():
            pass  # another process found the folder between two renames and finished them
        else:
            if not target.exists() and replaced.exists():
                replaced.rename(target)
            shutil.rmtree(complete, ignore_errors=True)
            raise
    files.before_disk_change("remove", replaced)
    shutil.rmtree(replaced, ignore_errors=True)


def finish_replacement(target: Path) -> None:
    """Completes the replacement of a folder that a killed process left unfinished; else does nothing."""
    try:
        target = target.resolve()
        complete, replaced = _temporary_paths_of_new_and_old(target)
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
