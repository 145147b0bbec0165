"""Times the linear kernel beside torch's and the machine's limits: `python -m benchmarks.cpu_linear`.

All are timed in turns within one process, so what else the machine does meanwhile falls on all of them.
Up to 16 rows the weights come from memory, as in decoding: so many copies of the matrix are passed in one go
that no cache holds them. From 32 rows on one matrix is used again and again.

The roofline (Williams et al., 2009) of a call is the longer of two times: to read as many bytes as the
weights have, if they come from memory, at the pace of torch's sum over 256 MiB; and to multiply, at the pace
of a loop that has all its operands in registers, of the instruction for the activations' dtype. Weights of 4
and 8 bits may be multiplied as integers, and then exceed it.

torch's threads watch for work for 3 ms after a call, on the cores that ours needs. So ours comes first in a
round, when they sleep.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import torch
import torch.nn.functional as F

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import WeightForm
from splitserve.worker.pages import zero_pages

# Name, K, N: the matrices of the demo model and of models in the shapes of SmolLM2 135M and Qwen3 0.6B.
SHAPES = [
    ("demo qkv", 256, 512),
    ("demo gate-up", 256, 1408),
    ("demo down", 704, 256),
    ("135M qkv", 576, 960),
    ("135M gate-up", 576, 3072),
    ("135M down", 1536, 576),
    ("135M head", 576, 49152),
    ("0.6B qkv", 1024, 4096),
    ("0.6B gate-up", 1024, 6144),
    ("0.6B down", 3072, 1024),
    ("0.6B head", 1024, 151936),
]
TOKENS = (1, 2, 4, 8, 12, 16, 32, 64, 256, 1024)
MAX_HEAD_TOKENS = 64
COLD_BYTES = 256 * 2**20
MAX_COLD_TOKENS = 16


# About 2 ms.
PEAK_ROUNDS = 16_000
# Twice as long as torch's threads stay awake.
PAUSE_S = 0.006

Clock = Callable[[], float]


@dataclass(slots=True)
class Result:
    """Microseconds per call of the best and of the median round; the limits are those of the best."""

    matrix: str
    tokens: int
    us: float
    median_us: float
    torch_us: float
    torch_median_us: float
    read_us: float
    multiply_us: float
    ratio: float
    share_of_roofline: float
    gflop_per_s: float


class Limits:
    """How fast the machine reads and multiplies, as two calls and what they do.

    Args:
        dtype: of the products.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._bytes = zero_pages((COLD_BYTES // 4,), torch.float32, huge=True).fill_(1)
        self._x = torch.zeros(32, dtype=dtype)
        self.num_bytes = self._bytes.nbytes
        self.flop = ops.multiply_peak(self._x, PEAK_ROUNDS)

    def read(self) -> None:
        """Read `num_bytes` once."""
        self._bytes.sum()

    def multiply(self) -> None:
        """Do `flop` operations."""
        ops.multiply_peak(self._x, PEAK_ROUNDS)


class Matrix:
    """One weight in both forms, in enough copies that no cache holds the packed ones."""

    def __init__(
        self, name: str, depth: int, cols: int, dtype: torch.dtype, form: WeightForm = "plain"
    ) -> None:
        self.name, self.depth, self.cols, self.dtype = name, depth, cols, dtype
        plain = torch.randn(cols, depth).to(dtype)
        packed = PackedWeight.of(plain, form)
        self._copies = max(1, -(-COLD_BYTES // packed.num_bytes))
        self._plain = [plain.clone() for _ in range(self._copies)]
        self._packed = [PackedWeight.of(plain, form) for _ in range(self._copies)]

    def measure(self, tokens: int, limits: Limits, seconds: float, clock: Clock) -> Result:
        """Time ours, the two limits and torch's in turns for about this long."""
        is_cold = tokens <= MAX_COLD_TOKENS
        copies = self._copies if is_cold else 1
        x = torch.randn(tokens, self.depth).to(self.dtype)
        out = torch.empty(tokens, self.cols, dtype=self.dtype)

        def ours() -> None:
            for weight in self._packed[:copies]:
                ops.linear(out, x, weight)

        def torchs() -> None:
            for weight in self._plain[:copies]:
                F.linear(x, weight)

        turns = [ours, limits.multiply, torchs, limits.read]
        pause_s = PAUSE_S if torch.get_num_threads() > 1 else 0.0
        ours_s, multiply_s, torch_s, read_s = in_turns(turns, seconds, clock, pause_s)
        flop = 2 * tokens * self.depth * self.cols
        num_bytes = self._packed[0].num_bytes if is_cold else 0
        return result(
            self.name,
            tokens,
            ours_s=[t / copies for t in ours_s],
            torch_s=[t / copies for t in torch_s],
            read_s=min(read_s) / limits.num_bytes * num_bytes,
            multiply_s=min(multiply_s) / limits.flop * flop,
            flop=flop,
        )


def result(
    name: str,
    tokens: int,
    *,
    ours_s: list[float],
    torch_s: list[float],
    read_s: float,
    multiply_s: float,
    flop: int,
) -> Result:
    """The line of a matrix from the seconds of each call and what the machine needs at least."""
    best, torch_best = min(ours_s), min(torch_s)
    return Result(
        name,
        tokens,
        best * 1e6,
        statistics.median(ours_s) * 1e6,
        torch_best * 1e6,
        statistics.median(torch_s) * 1e6,
        read_s * 1e6,
        multiply_s * 1e6,
        best / torch_best,
        max(read_s, multiply_s) / best,
        flop / best / 1e9,
    )


def in_turns(
    calls: Sequence[Callable[[], None]], seconds: float, clock: Clock, pause_s: float = 0.0
) -> list[list[float]]:
    """Seconds of every call, each called once per round, for as many rounds as fit and at least three.

    A round begins with a pause.
    """
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    end = time.perf_counter() + seconds
    while len(times[0]) < 3 or time.perf_counter() < end:
        time.sleep(pause_s)
        for call, series in zip(calls, times, strict=True):
            start = clock()
            call()
            series.append(clock() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of all sides (default: 2)")
    parser.add_argument("--isa", default=ops.best_cpu_isa(), help="instruction set (default: the best)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--weights", choices=get_args(WeightForm), default="plain", help="form of ours")
    parser.add_argument("--cpu-time", action="store_true", help="one thread, and its CPU time only")
    parser.add_argument("--seconds", type=float, default=0.5, help="time per line (default: 0.5)")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)), help="rows, with commas between")
    parser.add_argument("--only", default="", help="matrices whose name contains this")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    clock = time.thread_time if options.cpu_time else time.perf_counter
    if options.cpu_time:
        options.threads = 1
    ops.set_isa(options.isa)
    ops.set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    settings = f"{options.isa}, {options.dtype}, {options.weights} weights, {options.threads} thread(s)"
    print(f"{settings}, torch {torch.__version__}, load {load()}")
    print(
        f"{'matrix':<13} {'T':>5} {'us':>9} {'(median)':>9} {'torch us':>9} {'(median)':>9} {'ratio':>6} "
        f"{'limit us':>9} {'by':>8} {'share':>6} {'GFLOP/s':>8}"
    )
    limits = Limits(getattr(torch, options.dtype))
    results = []
    for name, depth, cols in SHAPES:
        if options.only not in name:
            continue
        matrix = Matrix(name, depth, cols, getattr(torch, options.dtype), options.weights)
        for tokens in map(int, options.tokens.split(",")):
            if "head" not in name or tokens <= MAX_HEAD_TOKENS:
                results.append(r := matrix.measure(tokens, limits, options.seconds, clock))
                print(row(r), flush=True)
    print(f"load {load()}")
    if options.json:
        document = {"isa": options.isa, "threads": options.threads, "results": [asdict(r) for r in results]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def row(r: Result) -> str:
    by = "read" if r.read_us > r.multiply_us else "products"
    return (
        f"{r.matrix:<13} {r.tokens:>5} {r.us:>9.1f} {r.median_us:>9.1f} {r.torch_us:>9.1f} "
        f"{r.torch_median_us:>9.1f} {r.ratio:>6.2f} {max(r.read_us, r.multiply_us):>9.1f} {by:>8} "
        f"{r.share_of_roofline:>6.2f} {r.gflop_per_s:>8.0f}"
    )


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    with torch.inference_mode():
        main()
