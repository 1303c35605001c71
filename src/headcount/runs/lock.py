"""Locks on a run folder: one leading process, any number of workers that joined it, and the artifact that each of them computes.

All are kernel locks on bytes of one file, so a process that dies, in whatever way, releases them.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from headcount.core import files
from headcount.core.errors import ArtifactError

LOCK, OWNER = "lock", "owner.json"
LEADER, WORKERS, QUARANTINE, ARTIFACTS = 0, 1, 2, 3
"""Bytes of the lock file; the locks of artifacts lie from ARTIFACTS on."""


class Busy(ArtifactError):
    """A run folder in which another process works."""


class RunLock:
    """The locks that this process holds in one run folder."""

    _locked_folders: ClassVar[set[Path]] = set()  # the kernel's locks do not keep a process out of its own files

    def __init__(self, folder: Path, *, join: bool, command: str = "") -> None:
        self.folder = folder.resolve()
        if self.folder in self._locked_folders:
            raise Busy(f"{folder} is in use by this process already; close that run first")
        self.joined = join
        self._kernel = kernel_locks()
        self._file = self._open_lock_file()
        try:
            self._acquire()
            while not self._holds_current_lock_file():
                os.close(self._file)
                self._file = self._open_lock_file()
                self._acquire()
            if not join:
                since = datetime.now(UTC).isoformat(timespec="seconds")
                owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "command": command}
                files.write_atomic(self.folder / OWNER, json.dumps(owner).encode())
        except OSError as error:
            os.close(self._file)
            raise ArtifactError(f"{self.folder} cannot be worked in: its file system gives no locks ({error})") from error
        except BaseException:
            os.close(self._file)
            raise
        self._locked_folders.add(self.folder)

    def _open_lock_file(self) -> int:
        try:
            files.before_disk_change("lock", self.folder / LOCK)
            return os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ArtifactError(f"{self.folder} cannot be worked in: {error}") from error

    def _acquire(self) -> None:
        if self.joined:
            self._lock(WORKERS, self._kernel.LOCK_SH)
        elif not self._try_lock(LEADER):
            raise Busy(_busy_message(self.folder))

    def _holds_current_lock_file(self) -> bool:
        """Whether the locked file is still the one in the folder; a process that wrote nothing removes its own."""
        try:
            return os.path.samestat(os.fstat(self._file), (self.folder / LOCK).stat())
        except FileNotFoundError:
            return False

    @contextmanager
    def exclude_workers(self) -> Iterator[bool]:
        """Yields whether no worker has joined; then none can while the context lasts."""
        is_alone = self._try_lock(WORKERS)
        try:
            yield is_alone
        finally:
            if is_alone:
                self._unlock(WORKERS)

    @contextmanager
    def lock_quarantine(self) -> Iterator[None]:
        """Lets one process at a time move damaged files to the quarantine."""
        self._lock(QUARANTINE, self._kernel.LOCK_EX)
        try:
            yield
        finally:
            self._unlock(QUARANTINE)

    def claim(self, digest: str) -> bool:
        """Claims an artifact for this process; returns False if another process computes it."""
        return self._try_lock(_lock_byte_of(digest))

    def release(self, digest: str) -> None:
        """Releases a claimed artifact."""
        self._unlock(_lock_byte_of(digest))

    def close(self, *, remove_empty_folder: bool = False) -> None:
        """Releases all locks; `remove_empty_folder` also removes the folder if nothing was written to it."""
        if self.folder not in self._locked_folders:
            return
        self._locked_folders.discard(self.folder)
        try:
            if not self.joined:
                with suppress(OSError):  # a file that stays behind only names the last owner
                    files.before_disk_change("remove", self.folder / OWNER)
                    (self.folder / OWNER).unlink(missing_ok=True)
                    if remove_empty_folder:
                        self._remove_folder_if_empty()
        finally:
            os.close(self._file)

    def _remove_folder_if_empty(self) -> None:
        with self.exclude_workers() as is_alone:
            if is_alone and all(path.name == LOCK for path in self.folder.iterdir()):
                files.before_disk_change("remove", self.folder)
                (self.folder / LOCK).unlink(missing_ok=True)
                self.folder.rmdir()

    def _unlock(self, byte: int) -> None:
        self._kernel.lockf(self._file, self._kernel.LOCK_UN, 1, byte)

    def _lock(self, byte: int, mode: int) -> None:
        self._kernel.lockf(self._file, mode, 1, byte)

    def _try_lock(self, byte: int) -> bool:
        try:
            self._lock(byte, self._kernel.LOCK_EX | self._kernel.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True


def kernel_locks() -> ModuleType:
    """Returns the module of POSIX kernel locks; imported only when a folder is locked, so that everything else works on Windows."""
    try:
        import fcntl
    except ModuleNotFoundError as error:
        raise ArtifactError(
            "a run folder is locked through a POSIX kernel (fcntl), which this system lacks; "
            "work without a run folder, or on Linux, macOS or WSL. Finished runs can be read here."
        ) from error
    return fcntl


def _lock_byte_of(digest: str) -> int:
    return ARTIFACTS + int(digest[:15], 16)


def read_owner(folder: Path) -> dict[str, Any]:
    """Returns process, host, start and command of the leading process; empty if they are not known."""
    try:
        owner = json.loads((folder / OWNER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _busy_message(folder: Path) -> str:
    owner = read_owner(folder)
    who = (
        f"process {owner.get('pid')} on {owner.get('host')} since {owner.get('since')}: {owner.get('command')}"
        if owner
        else "another process"
    )
    return f"{folder} is in use by {who}. Wait for it, name another folder, or help it as a worker"
