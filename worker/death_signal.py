"""Does this process die with the one that started it? Linux only; elsewhere it has to look for itself."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, even in the middle of a load or a step."""
    _set(signal.SIGKILL)


def outlive_parent() -> None:
    """Take that back; whoever calls this looks for the end of its engine by itself."""
    _set(0)


def _set(number: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
