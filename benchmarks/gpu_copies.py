"""How fast a device copies its own memory: the ceiling beside which benchmarks.gpu_* hold their times."""

from __future__ import annotations

import statistics
import time

import torch

COPY_BYTES = 1 << 30


def copy_bytes_per_s(device: torch.device, num_bytes: int = COPY_BYTES) -> float:
    """Bytes per second of a large copy, counting those read and those written.

    Not as part of a CUDA graph: there it is left to a copy engine, which is slower than the multiprocessors.
    """
    source, target = (torch.zeros(num_bytes, dtype=torch.uint8, device=device) for _ in range(2))
    seconds = []
    for _ in range(6):
        _wait(device)
        started = time.perf_counter()
        target.copy_(source)
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return 2 * num_bytes / statistics.median(seconds[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
