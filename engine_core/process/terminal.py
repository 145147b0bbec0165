"""Does SIGHUP mean that the terminal is gone, or that the server is to be restarted?"""

from __future__ import annotations

import errno
import os


class Terminal:
    """The controlling terminal that this process was started with, if there was one."""

    def __init__(self) -> None:
        self._is_there = _has_terminal()

    def hung_up(self) -> bool:
        """Return whether it is gone since the last call; true once at most."""
        was_there, self._is_there = self._is_there, self._is_there and _has_terminal()
        return was_there and not self._is_there


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        # ENXIO: there is none; EIO: it was hung up; ENOENT: the system has no such file.
        return error.errno not in (errno.ENXIO, errno.EIO, errno.ENOENT)
    return True
