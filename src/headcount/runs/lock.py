"""Who works in a run folder: one leader, and any number of workers that joined it; who is at which artifact.

All of it are locks of the kernel on bytes of one file, so that a process that dies, however it dies, holds nothing any more.
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
LEADER, WORKERS, MENDING, ARTIFACTS = 0, 1, 2, 3


class Busy(ArtifactError):
    """A run folder in which another process works."""


class RunLock:
    """The locks that this process has in one run folder."""

    _mine: ClassVar[set[Path]] = set()  # the kernel's locks do not keep a process out of its own files

    def __init__(self, folder: Path, *, join: bool, command: str = "") -> None:
        self.folder = folder.resolve()
        if self.folder in self._mine:
            raise Busy(f"{folder} is in use by this process already; close that run first")
        self.joined = join
        self._kernel = kernel_locks()
        self._file = self._open()
        try:
            while not (self._take() and self._is_there()):
                os.close(self._file)
                self._file = self._open()
            if not join:
                _tell(self.folder, command)
        except OSError as error:
            os.close(self._file)
            raise ArtifactError(f"{self.folder} cannot be worked in: its file system gives no locks ({error})") from error
        except BaseException:
            os.close(self._file)
            raise
        self._mine.add(self.folder)

    def _open(self) -> int:
        try:
            files.before("lock", self.folder / LOCK)
            return os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ArtifactError(f"{self.folder} cannot be worked in: {error}") from error

    def _take(self) -> bool:
        if self.joined:
            self._lock(WORKERS, self._kernel.LOCK_SH)
        elif not self._try(LEADER):
            raise Busy(_owned(self.folder))
        return True

    def _is_there(self) -> bool:
        """Whether the file that is locked is still the one in the folder: a process that wrote nothing takes its own away."""
        try:
            return os.path.samestat(os.fstat(self._file), (self.folder / LOCK).stat())
        except FileNotFoundError:
            return False

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether no worker has joined; none can while the context lasts."""
        alone = self._try(WORKERS)
        try:
            yield alone
        finally:
            if alone:
                self._unlock(WORKERS)

    @contextmanager
    def mending(self) -> Iterator[None]:
        """One process at a time sets damaged files aside."""
        self._lock(MENDING, self._kernel.LOCK_EX)
        try:
            yield
        finally:
            self._unlock(MENDING)

    def claim(self, key: str) -> bool:
        """Takes an artifact to compute; False if another process is at it."""
        return self._try(_place(key))

    def release(self, key: str) -> None:
        """Gives an artifact back."""
        self._unlock(_place(key))

    def close(self, *, vanish: bool = False) -> None:
        """Gives everything back; `vanish` removes the folder if nothing was written to it."""
        if self.folder not in self._mine:
            return
        self._mine.discard(self.folder)
        try:
            if not self.joined:
                with suppress(OSError):  # what stays behind says who was here last, and harms nothing
                    files.before("remove", self.folder / OWNER)
                    (self.folder / OWNER).unlink(missing_ok=True)
                    if vanish:
                        self._vanish()
        finally:
            os.close(self._file)

    def _vanish(self) -> None:
        with self.alone() as alone:
            if alone and all(path.name == LOCK for path in self.folder.iterdir()):
                files.before("remove", self.folder)
                (self.folder / LOCK).unlink(missing_ok=True)
                self.folder.rmdir()

    def _unlock(self, place: int) -> None:
        self._kernel.lockf(self._file, self._kernel.LOCK_UN, 1, place)

    def _lock(self, place: int, how: int) -> None:
        self._kernel.lockf(self._file, how, 1, place)

    def _try(self, place: int) -> bool:
        try:
            self._lock(place, self._kernel.LOCK_EX | self._kernel.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True


def kernel_locks() -> ModuleType:
    """Python's module for locks of the kernel, which Windows lacks: imported when a folder is taken, so that all else works without it."""
    try:
        import fcntl
    except ModuleNotFoundError as error:
        raise ArtifactError(
            "a run folder is taken by locks of a POSIX kernel (fcntl), and this system has none; "
            "work without a run folder, or on Linux, macOS or WSL. Finished runs can be read here."
        ) from error
    return fcntl


def _place(key: str) -> int:
    return ARTIFACTS + int(key[:15], 16)


def _tell(folder: Path, command: str) -> None:
    told = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat(timespec="seconds"), "command": command}
    files.write_atomic(folder / OWNER, json.dumps(told).encode())


def owner(folder: Path) -> dict[str, Any]:
    """What the leader of a folder said about itself, if anything."""
    try:
        told = json.loads((folder / OWNER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _owned(folder: Path) -> str:
    told = owner(folder)
    who = f"process {told.get('pid')} on {told.get('host')} since {told.get('since')}: {told.get('command')}" if told else "another process"
    return f"{folder} is in use by {who}. Wait for it, name another folder, or help it with the same command and --join."
