"""Where do an engine and its successors at the same address find each other's workers?

file          what it is
lock          held by the engine that owns the workers, see lock.py
group.json    who the workers are, see record.py
XXXX          the socket for workers, named after the pid of the engine that started them; each engine binds
              it anew. Workers of which nobody knows any more come to no other engine's
rendezvous    where ranks meet while they start
"""

from __future__ import annotations

import base64
import contextlib
import os
import sys
from hashlib import sha256

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.addresses import ipc_path, is_ipc, make_private_directory
from splitserve.engine_core.kept.lock import EngineLock
from splitserve.engine_core.kept.processes import kill_processes
from splitserve.engine_core.kept.record import GroupRecord, read_record, write_record
from splitserve.engine_core.process.runtime_directory import leave_runtime_directory, runtime_directory

# A killed engine is gone within milliseconds, unless it has a core dump to write or much memory to give back.
LOCK_PATIENCE_S = 2.0
KILL_S = 10.0
_RECORD, _RENDEZVOUS, _LOCK = "group.json", "rendezvous", "lock"
_PID_BYTES = 3


def can_keep_workers(address: str) -> bool:
    """Whether a successor can find the workers of an engine that listens on this address.

    Not at a port that the system chooses. And it takes pidfds and /proc, thus Linux.
    """
    return sys.platform == "linux" and hasattr(os, "pidfd_open") and not address.endswith((":0", ":*"))


def workers_folder(address: str) -> str:
    """Return the path of the folder for the workers of the engine that listens on an address."""
    if is_ipc(address):
        address = os.path.abspath(ipc_path(address))
    return f"{runtime_directory()}/workers-{sha256(address.encode()).hexdigest()[:12]}"


class WorkersFolder:
    """The folder of this engine's workers; owned by the busy loop's thread.

    Attributes:
        path: of the folder.

    Args:
        address: that the engine listens on.
    """

    def __init__(self, address: str) -> None:
        self.path = workers_folder(address)
        self._lock: EngineLock | None = None

    def enter(self, timeout_s: float = LOCK_PATIENCE_S) -> None:
        """Make it and become its owner.

        Raises:
            ConfigError: the folder is not private, cannot be used, or another engine owns it.
        """
        make_private_directory(runtime_directory())
        # An engine that ends removes folder and lock, perhaps between our two steps.
        while self._lock is None:
            make_private_directory(self.path)
            try:
                self._lock = EngineLock(f"{self.path}/{_LOCK}", timeout_s)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise ConfigError(f"cannot lock {self.path}/{_LOCK}: {error.strerror}") from None

    def socket_address(self, starter_pid: int) -> str:
        """Return the address that the workers connect to that an engine has started."""
        # As long as a path may be: four characters.
        name = base64.urlsafe_b64encode((starter_pid % 2 ** (8 * _PID_BYTES)).to_bytes(_PID_BYTES, "big"))
        return f"ipc://{self.path}/{name.decode()}"

    @property
    def rendezvous(self) -> str:
        """The path of the file by which ranks meet."""
        return f"{self.path}/{_RENDEZVOUS}"

    def read(self) -> GroupRecord | None:
        """Return who the predecessor's workers are; None if it left none."""
        return read_record(self._record)

    def write(self, record: GroupRecord) -> None:
        """Say who this engine's workers are.

        Raises:
            OSError: the file cannot be written.
        """
        write_record(self._record, record)

    def forget(self) -> None:
        """Remove the files of workers that have ended."""
        _remove_files(self.path)

    def leave(self, *, keep: bool) -> None:
        """Stop owning it; unless its workers are kept for a successor, nothing is left of it."""
        if self._lock is None:
            return
        if not keep:
            self.forget()
        self._lock.release(remove=not keep)
        self._lock = None
        if not keep:
            leave_runtime_directory(self.path)

    @property
    def _record(self) -> str:
        return f"{self.path}/{_RECORD}"


def end_kept_workers(address: str) -> int:
    """Kill the workers that wait for a successor of the engine at an address; returns how many there were.

    Nothing happens while an engine owns them, or where there are none.
    """
    path = workers_folder(address)
    if not os.path.isdir(path):
        return 0
    folder = WorkersFolder(address)
    try:
        folder.enter(0.0)
    except ConfigError:
        return 0
    record = folder.read()
    workers = record.workers if record is not None else []
    kill_processes(workers, KILL_S)
    folder.leave(keep=False)
    return len(workers)


def remove_folder_of(pid: int, path: str) -> None:
    """Remove the folder of workers that have waited in vain, if it is still about this one; never fails.

    Args:
        pid: of one of the workers.
        path: of the folder.
    """
    try:
        lock = EngineLock(f"{path}/{_LOCK}", 0.0)
    except (OSError, ConfigError):
        return
    record = read_record(f"{path}/{_RECORD}")
    is_ours = record is not None and any(worker.pid == pid for worker in record.workers)
    if is_ours:
        _remove_files(path)
    lock.release(remove=is_ours)
    leave_runtime_directory(path)


def _remove_files(path: str) -> None:
    """Remove all but the lock, which the caller holds: without it the folder may be another engine's."""
    with contextlib.suppress(OSError):
        for name in os.listdir(path):
            if name != _LOCK:
                with contextlib.suppress(OSError):
                    os.unlink(f"{path}/{name}")
