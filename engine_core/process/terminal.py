"""Does SIGHUP mean that the terminal is gone, or that the server is to be restarted?"""

from __future__ import annotations

import errno
import os

# A shell that ends passes the signal on, later than the kernel sent it.
HANG_UP_S = 2.0


class Terminal:
    """The controlling terminal that this process was started with, if there was one.

    A server in the background is not told of its end, and runs on. So its owner looks at times whether it is
    still there: a signal that comes long after its end is meant otherwise.
    """

    def __init__(self) -> None:
        self._is_there = _has_terminal()
        self._told_until_s = 0.0

    def look(self, now_s: float) -> None:
        """Note when it is gone."""
        if self._is_there and not _has_terminal():
            self._is_there = False
            self._told_until_s = now_s + HANG_UP_S

    def hung_up(self, now_s: float) -> bool:
        """Return whether a hang-up signal that comes now tells of its end; true once at most."""
        self.look(now_s)
        until_s, self._told_until_s = self._told_until_s, 0.0
        return now_s < until_s


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        # ENXIO: there is none; EIO: it was hung up; ENOENT: the system has no such file.
        return error.errno not in (errno.ENXIO, errno.EIO, errno.ENOENT)
    return True
