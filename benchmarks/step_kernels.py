"""Which kernels does a decode step of the worker spend its time in?

Usage: python -m benchmarks.step_kernels [--model DIR] [--rows 1,64] [--threads N] [--context N] [--json FILE]

For each number of rows a worker without an engine first decodes as it does in service, its steps recorded
where that pays, and prints the median of a step. Then a second one runs every kernel of the step by itself
with a clock around each call: microseconds per step by operation, matrices by their shape; "between" is what
lies outside all kernels there. The sum is larger than a recorded step by the cost of the calls.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.worker import BATCH_SIZES, DEMO_MODEL, WARM_UP_STEPS, Bench, check_context
from splitserve.engine_core.sequence_sampling import SequenceSampling

# Methods of worker.ops.cpu.CpuOps that are asked between steps, if at all.
SETTINGS = (
    "cpu_isa",
    "cpu_isas",
    "best_cpu_isa",
    "set_isa",
    "uses_vnni",
    "set_uses_vnni",
    "multiplies_floats",
    "set_multiplies_floats",
    "set_num_threads",
    "num_threads",
)
GREEDY = SequenceSampling(temperature=0.0, seed=0, ignore_eos=True)
STEPS = 200


class OpTimes:
    """Seconds spent in each operation of the CPU since the last look, by a clock around every call."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def watch(self, ops: object) -> None:
        """Put clocks around an object's operations; what is built from now on calls them."""
        for name, method in inspect.getmembers(ops, inspect.ismethod):
            if name not in SETTINGS and not name.startswith("_"):
                setattr(ops, name, self.timed(name, method))

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with a clock around it."""

        @functools.wraps(function)
        def call(*args: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args)
            finally:
                self._seconds[label(name, args)] += time.perf_counter() - started

        return call

    def take(self) -> dict[str, float]:
        """Return the seconds by operation, the longest first, and start anew."""
        seconds, self._seconds = self._seconds, defaultdict(float)
        return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def label(name: str, args: tuple[Any, ...]) -> str:
    """Return an operation's name, and of one with a matrix also the matrix's shape."""
    shapes = [argument.shape for argument in args if type(argument).__name__ == "PackedWeight"]
    return f"{name} {shapes[0][0]}x{shapes[0][1]}" if shapes else name


def measure(options: argparse.Namespace, num_rows: int, times: OpTimes) -> dict[str, float]:
    """Return microseconds per step: as in service, "one by one", and the parts of the latter."""

    def bench(enforce_eager: bool) -> Bench:
        return Bench(options.model, options.threads, options.context, enforce_eager)

    in_service = bench(False).decode(num_rows, STEPS, GREEDY).median_us
    eager = bench(True)
    eager.enter(num_rows, options.context - STEPS - WARM_UP_STEPS, GREEDY)
    step = eager.decode_step(num_rows)
    eager.execute(step)
    times.take()
    durations = [eager.execute(step).compute_s for _ in range(STEPS)]
    by_op = {name: seconds / STEPS * 1e6 for name, seconds in times.take().items()}
    one_by_one = statistics.mean(durations) * 1e6
    totals = {"in service": in_service, "one by one": one_by_one, "between": one_by_one - sum(by_op.values())}
    return {**totals, **by_op}


def parse_options(args: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line, or `args` in its place."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=str(DEMO_MODEL), help="checkpoint directory")
    parser.add_argument("--rows", default="1,64", help=f"at most {max(BATCH_SIZES)} each")
    parser.add_argument("--threads", type=int, default=0, help="0: all cores this process may use")
    parser.add_argument("--context", type=int, default=512, help="tokens a row holds at the end")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args(args)
    check_context(parser, options.context, STEPS)
    return options


def main() -> None:
    """Measure and print a table per number of rows."""
    from splitserve.worker.ops.cpu import ops

    options = parse_options()
    times = OpTimes()
    times.watch(ops)
    times.watch(ops.sampling)
    found = {}
    for num_rows in map(int, options.rows.split(",")):
        found[num_rows] = figures = measure(options, num_rows, times)
        print(f"\n{num_rows} rows" if num_rows > 1 else "\none row")
        for name, microseconds in figures.items():
            print(f"  {name:<32} {microseconds:9.1f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
