"""What would the machine allow? Read bandwidth bounds decoding, the rate of products bounds prefill."""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.compare.engines.base import NUM_CORES
from benchmarks.compare.processes import ROOT
from benchmarks.compare.shapes import Shape

SOURCE = Path(__file__).with_name("read_bandwidth.cpp")
# Far more than any cache, and little beside the memory of a small machine.
READ_MIB, READ_PASSES = 1024, 9
# Smaller weights stay in the caches between two tokens, and the bandwidth of memory bounds nothing.
MIN_FLOOR_BYTES = 100 << 20
MATMUL_SIZE, MATMUL_REPEATS = 2048, 9
# Enough to see whether bfloat16 is multiplied by instructions of its own.
PROBE_SIZE = 256


def build(root: Path) -> Path:
    """Compile the bandwidth program once; raises CalledProcessError or OSError without a compiler."""
    program = root / "read_bandwidth"
    if not program.exists() or program.stat().st_mtime < SOURCE.stat().st_mtime:
        compiler = shlex.split(os.environ.get("CXX", "c++"))
        flags = ["-std=c++20", "-O3", "-march=native", "-pthread", str(SOURCE), "-o", str(program)]
        subprocess.run([*compiler, *flags], check=True)
    return program


def read_gb_per_s(root: Path) -> float:
    """Return the read bandwidth of all cores together."""
    command = [str(build(root)), str(READ_MIB), str(NUM_CORES), str(READ_PASSES)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def matmul_gflop_per_s() -> float:
    """Return torch's rate for a product of squares with all cores, in a process of its own.

    Of bfloat16, or of float32 where that is faster: without instructions for bfloat16 torch is slow at it.
    """
    command = [sys.executable, "-m", "benchmarks.compare.limits"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)


def decode_floor_tok_s(gb_per_s: float, weight_bytes: int) -> float:
    """Return tokens per second of one stream that reads every weight once per token and does nothing else."""
    return gb_per_s * 1e9 / weight_bytes


def prefill_ceiling_tok_s(gflop_per_s: float, shape: Shape) -> float:
    """Return prompt tokens per second if all layers' products ran at the full rate and attention was free."""
    per_token = 2 * (shape.num_active_parameters - shape.vocab_size * shape.hidden_size)
    return gflop_per_s * 1e9 / per_token


def _time_matmul() -> float:
    import torch

    torch.set_num_threads(NUM_CORES)

    def rate(size: int, dtype: torch.dtype) -> float:
        left, right = (torch.randn(size, size).to(dtype) for _ in range(2))
        seconds = []
        for _ in range(MATMUL_REPEATS):
            start = time.perf_counter()
            left @ right
            seconds.append(time.perf_counter() - start)
        return 2 * size**3 / statistics.median(seconds) / 1e9

    faster = max((torch.bfloat16, torch.float32), key=lambda dtype: rate(PROBE_SIZE, dtype))
    return rate(MATMUL_SIZE, faster)


if __name__ == "__main__":
    print(_time_matmul())
