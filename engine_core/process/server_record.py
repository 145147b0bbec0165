"""The file by which a running `splitserve serve` is found: who it is, where it listens, and its restarts.

The server holds a lock on it while it runs; a file without a lock was left by one that was killed. It is
there before the server starts its first child, so that whoever ends last knows whose directory it leaves.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

import msgspec

from splitserve.engine_core.process.children import process_stat

NAME = "server.json"
# What the frontends of a server keep there, unless they were told another place.
RESPONSES_NAME = "responses.db"
FILES_NAME = "files.db"
# Written as a whole each time, so that a reader never finds the end of a longer one.
_NUM_BYTES = 4096
# Children are told of the death of a process before its last thread has given back the lock.
_DYING_S, _ASK_S = 2.0, 0.01


class ServerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself.

    Attributes:
        pid: of `splitserve serve`.
        started_s: when, in seconds since 1970.
        place: base URL, or "unix:PATH".
        port: TCP port, 0 for a Unix socket.
        engine: address of its engine-core.
        num_rolls_begun, num_rolls_ended: rolling restarts.
        failure: why the last one failed, "" if it did not.
    """

    pid: int
    started_s: float
    place: str
    port: int
    engine: str
    num_rolls_begun: int = 0
    num_rolls_ended: int = 0
    failure: str = ""


class RecordFile:
    """The file of this server, below its private directory; owned by the launcher."""

    def __init__(self, directory: str) -> None:
        """Create it; nobody finds the server by it before the first write.

        Raises:
            OSError: it cannot be written.
        """
        self._path = os.path.join(directory, NAME)
        # Under its name it is locked from the beginning: unlocked it would be a killed server's.
        unlocked = f"{self._path}.new"
        self._fd = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(unlocked, self._path)

    def write(self, record: ServerRecord) -> None:
        """Replace what it says; a full disk is no reason to stop serving."""
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, msgspec.json.encode(record).ljust(_NUM_BYTES), 0)

    def close(self) -> None:
        """Remove it."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        os.close(self._fd)


def read_record(directory: str) -> ServerRecord | None:
    """Return what the server of a directory says; None if there is none, or it has ended."""
    with contextlib.suppress(OSError, msgspec.DecodeError), open(os.path.join(directory, NAME), "rb") as file:
        if not _is_free(file.fileno()):
            return msgspec.json.decode(file.read(_NUM_BYTES), type=ServerRecord)
    return None


def remove_orphan(directory: str) -> None:
    """Empty the directory of a server that was killed; never fails, and nothing happens to any other's."""
    with contextlib.suppress(OSError), open(os.path.join(directory, NAME), "rb") as file:
        end_s = time.monotonic() + _DYING_S
        while (
            not (is_orphan := _is_free(file.fileno())) and _is_dying(directory) and time.monotonic() < end_s
        ):
            time.sleep(_ASK_S)
        # Its file comes last: until then another may go on where this process is stopped.
        for name in sorted(os.listdir(directory), key=NAME.__eq__) if is_orphan else ():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, name))


def _is_dying(directory: str) -> bool:
    """Whether the main thread of the server of a directory has ended, whose name ends in its pid."""
    pid = directory.rpartition("-")[2]
    state = process_stat(int(pid))[:1] if pid.isdecimal() else []
    # Where the system tells nothing of processes, nobody waits.
    return state in ([b"Z"], [b"X"]) or (not state and bool(process_stat(os.getpid())))


def _is_free(fd: int) -> bool:
    """Whether nobody holds the lock; it is let go again at once."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True
