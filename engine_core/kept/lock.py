"""Which engine owns the workers of an address? The one that holds this lock, for as long as it lives.

The kernel gives a lock back when its holder's process is gone, and not before: an engine that was stopped
still holds it, so nobody takes its workers away. It has to be killed first, as `splitserve serve` does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

from splitserve.engine_core.errors import ConfigError

_ASK_S = 0.02


class EngineLock:
    """A locked file that names its holder; released by release() or by the end of the process.

    Args:
        path: of the file, in a private folder.
        timeout_s: how long to wait for a holder that is about to end.

    Raises:
        ConfigError: another process holds it; names the pid.
        OSError: the file cannot be opened or made.
    """

    def __init__(self, path: str, timeout_s: float) -> None:
        self._path = path
        end_s = time.monotonic() + timeout_s
        while (descriptor := _try_lock(path)) < 0:
            if time.monotonic() > end_s:
                raise ConfigError(
                    f"the workers of this address belong to another engine-core, process {_holder(path)}; "
                    f"it holds {path} until it ends"
                )
            time.sleep(_ASK_S)
        self._descriptor = descriptor
        # It names its holder for people only: a full disk is no reason not to hold it.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)

    def release(self, *, remove: bool) -> None:
        """Let others have it; remove the file if nothing is left to own."""
        if self._descriptor < 0:
            return
        if remove:
            # While it is locked: whoever waits for it finds that the path is another file's, or nobody's.
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        os.close(self._descriptor)
        self._descriptor = -1


def _try_lock(path: str) -> int:
    """Return a locked descriptor of the file that the path names now, -1 if another process holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            named, held = os.stat(path), os.fstat(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            return -1
        except FileNotFoundError:
            os.close(descriptor)
            continue
        if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino):
            return descriptor
        os.close(descriptor)


def _holder(path: str) -> str:
    with contextlib.suppress(OSError), open(path) as file:
        return file.read(20).strip() or "?"
    return "?"
