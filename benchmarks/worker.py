"""How long the worker's steps take: decode steps by batch size, and prefill speed.

    python -m benchmarks.worker --model DIR [--threads 2] [--rows 1,32] [--prefills 0] [--json FILE]

One process, no engine: what is measured is one SchedulerOutput in, one ModelRunnerOutput out.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.row_blocks import RowBlocks
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig

BLOCK_SIZE = 16
BATCH_SIZES = (1, 4, 16, 32, 64)
# Steps of a row that are not measured, with room for a few more.
WARM_UP_STEPS = 8
DEMO_MODEL = Path(__file__).parent.parent / "engine_core" / "demo_model"


class Result(NamedTuple):
    """One line of the table: decode has a median step time, prefill a speed."""

    kind: str
    rows: int
    tokens: int
    median_us: float
    cpu_us: float
    tokens_per_s: float


class Bench:
    """A worker with room for the largest batch."""

    def __init__(
        self, model: str, threads: int, context: int, enforce_eager: bool, model_impl: str = "auto"
    ) -> None:
        # Here and not above, since it loads OpenMP, which reads its environment then.
        from splitserve.worker.worker import Worker

        self._context = context
        rows = max(BATCH_SIZES)
        config = WorkerConfig(
            model=model,
            model_impl=model_impl,
            num_threads=threads,
            max_num_seqs=rows,
            max_num_batched_tokens=context * rows,
            enforce_eager=enforce_eager,
        )
        self._worker = Worker(config)
        self.ready = self._worker.load(lambda loaded_bytes, total_bytes: None)
        self._blocks = RowBlocks(self.ready.model, -(-context // BLOCK_SIZE))
        self._worker.init_kv_cache(self._blocks.of_rows(rows))
        # As a worker does before it serves: what libraries keep is not looked through amid steps.
        gc.collect()
        gc.freeze()

    def decode_step(self, rows: int) -> SchedulerOutput:
        """Return a step in which each of so many rows computes one token."""
        return SchedulerOutput(1, pack_int32(range(rows)), pack_int32([1] * rows))

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step; RuntimeError if a row failed, since failed rows compute nothing."""
        output = self._worker.execute(step)
        if output.errors:
            raise RuntimeError(f"row {output.errors[0].row} failed: {output.errors[0].message}")
        return output

    def decode(self, rows: int, steps: int, sampling: SequenceSampling) -> Result:
        """Median time of a step in which every row computes one token."""
        self.enter(rows, self._context - steps - WARM_UP_STEPS, sampling)
        step = self.decode_step(rows)
        for _ in range(5):
            self.execute(step)
        cpu_started = time.process_time()
        times = [self.execute(step).compute_s for _ in range(steps)]
        cpu_s = (time.process_time() - cpu_started) / steps
        self._leave(rows)
        median = statistics.median(times)
        return Result("decode", rows, 1, median * 1e6, cpu_s * 1e6, rows / median)

    def prefill(self, rows: int, tokens: int, repeats: int) -> Result:
        """Speed of whole prompts in one step."""
        times = []
        cpu_started = time.process_time()
        for _ in range(repeats):
            started = time.perf_counter()
            self.enter(rows, tokens, SequenceSampling(seed=1))
            times.append(time.perf_counter() - started)
            self._leave(rows)
        cpu_s = (time.process_time() - cpu_started) / repeats
        median = statistics.median(times)
        return Result("prefill", rows, tokens, median * 1e6, cpu_s * 1e6, rows * tokens / median)

    def enter(self, rows: int, tokens: int, sampling: SequenceSampling) -> None:
        """Compute the prompts of new rows in one step."""
        blocks = self._blocks
        new_rows = [
            NewRow(
                row=row,
                token_ids=pack_int32([5 + (row + i) % 40 for i in range(tokens)]),
                num_prompt_tokens=tokens,
                num_computed_tokens=0,
                block_ids=blocks.first(row),
                window_block_ids=blocks.windows(row),
                sampling=sampling,
            )
            for row in range(rows)
        ]
        self.execute(SchedulerOutput(1, pack_int32(range(rows)), pack_int32([tokens] * rows), new_rows))

    def _leave(self, rows: int) -> None:
        self.execute(SchedulerOutput(1, b"", b"", freed_rows=pack_int32(range(rows))))


def check_context(parser: argparse.ArgumentParser, context: int, steps: int) -> None:
    """End with a usage error unless a row of `context` tokens has a prompt before so many measured steps."""
    least = steps + WARM_UP_STEPS + 1
    if context < least:
        parser.error(f"--context: must be at least {least} to hold a prompt and {steps} steps, got {context}")


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(map(int, text.split(",")))
    if not all(0 < number <= max(BATCH_SIZES) for number in numbers):
        raise argparse.ArgumentTypeError(f"must be 1 to {max(BATCH_SIZES)}, got {text}")
    return numbers


def parse_options(args: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line, or `args` in its place."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=str(DEMO_MODEL), help="checkpoint directory")
    parser.add_argument("--threads", type=int, default=0, help="0: all cores this process may use")
    parser.add_argument("--context", type=int, default=256, help="tokens a row holds at the end of decoding")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rows", type=_numbers, default=BATCH_SIZES, help="of decode steps")
    parser.add_argument("--prefills", type=int, default=10, help="prompts of each size; 0: none")
    parser.add_argument("--enforce-eager", action="store_true", help="record no decode steps")
    parser.add_argument("--model-impl", default="auto", help="as of engine-core")
    parser.add_argument("--json", type=Path, help="write the table here too")
    flags = parser.parse_args(args)
    check_context(parser, flags.context, flags.steps)
    return flags


def main() -> None:
    flags = parse_options()
    # As worker.cli has it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    bench = Bench(flags.model, flags.threads, flags.context, flags.enforce_eager, flags.model_impl)
    greedy = SequenceSampling(temperature=0.0, seed=0, ignore_eos=True)
    results = [bench.decode(rows, flags.steps, greedy) for rows in flags.rows]
    if flags.prefills:
        results += [bench.prefill(rows, flags.context // 2, flags.prefills) for rows in (1, 8)]
    model = bench.ready.model
    print(f"{model.architecture} {model.dtype} {model.num_params} parameters")
    print(f"{'kind':8} {'rows':>4} {'tokens':>6} {'step us':>9} {'cpu us':>9} {'tokens/s':>9}")
    for result in results:
        print("{:8} {:4} {:6} {:9.0f} {:9.0f} {:9.0f}".format(*result))
    if flags.json:
        flags.json.write_text(json.dumps([result._asdict() for result in results], indent=2))


if __name__ == "__main__":
    main()
