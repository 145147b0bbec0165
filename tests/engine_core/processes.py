"""When other processes have ended, whoever is to reap them."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil

_SLICE_S = 0.05


def wait_ended(processes: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until all have ended; return those that still run after the time.

    One whose parent was killed belongs to the first process of the machine or container, and not every one of
    these reaps: a zombie has ended.
    """
    end_s = time.monotonic() + timeout_s
    running = [process for process in processes if _runs(process)]
    while running and time.monotonic() < end_s:
        psutil.wait_procs(running, _SLICE_S)
        running = [process for process in running if _runs(process)]
    return running


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
