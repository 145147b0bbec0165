"""What the worker spends on a decode step beside the model: apply, lay out the inputs, append the tokens.

Usage: python -m benchmarks.worker_inputs [--rows 1,64,256,1024] [--windows N] [--json FILE]

Rows stand at all offsets of a block, so one in 16 gets a block in every step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from splitserve.engine_core.ipc.codec import encode, pack_int32, to_worker_decoder
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling

BLOCK_SIZE = 16
PROMPT_TOKENS = 128
WINDOW_STEPS = 2 * BLOCK_SIZE
VOCAB_SIZE = 32000
PHASES = ("decode step", "apply", "prepare", "append")


class Feeder:
    """Makes the frames an engine would send for rows that all decode."""

    def __init__(self, num_rows: int) -> None:
        self._rows = np.arange(num_rows)
        # Prompts of 113 to 128 tokens spread the borders.
        self._num_tokens = PROMPT_TOKENS - self._rows % BLOCK_SIZE
        self._next_block = num_rows * PROMPT_TOKENS // BLOCK_SIZE

    def first(self) -> SchedulerOutput:
        """Return the step that prefills every prompt."""
        blocks = np.arange(self._next_block).reshape(len(self._rows), -1)
        new_rows = [
            NewRow(
                row, pack_int32(range(length)), length, 0, pack_int32(blocks[row]), SequenceSampling(seed=row)
            )
            for row, length in enumerate(self._num_tokens.tolist())
        ]
        return SchedulerOutput(1, pack_int32(self._rows), pack_int32(self._num_tokens), new_rows)

    def next(self) -> bytes:
        """Return the next decode step, encoded."""
        crossing = self._rows[self._num_tokens % BLOCK_SIZE == 0]
        crossing = crossing[self._num_tokens[crossing] >= PROMPT_TOKENS]
        block_ids = np.arange(len(crossing)) + self._next_block
        self._next_block += len(crossing)
        self._num_tokens += 1
        ones = np.ones(len(self._rows), np.int64)
        return encode(
            SchedulerOutput(
                step=2,
                rows=pack_int32(self._rows),
                num_tokens=pack_int32(ones),
                block_rows=pack_int32(crossing),
                block_ids=pack_int32(block_ids),
            )
        )


def measure(num_rows: int, num_windows: int) -> dict[str, float]:
    """Return microseconds per step, and per step and row."""
    from splitserve.worker.batch.input_batch import BatchLimits, InputBatch

    max_len = PROMPT_TOKENS + num_windows * WINDOW_STEPS + BLOCK_SIZE
    num_blocks = num_rows * (max_len // BLOCK_SIZE + 1)
    limits = BatchLimits(num_rows, num_rows * PROMPT_TOKENS, max_len, BLOCK_SIZE, num_blocks, VOCAB_SIZE)
    batch = InputBatch(limits, [2])
    feeder = Feeder(num_rows)
    first = feeder.first()
    batch.apply(first)
    inputs = batch.prepare(first)
    sampled = np.full(num_rows, 7, np.int32)
    batch.append(inputs.rows, sampled)
    times = []
    for _ in range(num_windows * WINDOW_STEPS):
        frame = feeder.next()
        marks = [time.perf_counter()]
        step = to_worker_decoder.decode(frame)
        assert isinstance(step, SchedulerOutput)
        marks.append(time.perf_counter())
        batch.apply(step)
        marks.append(time.perf_counter())
        inputs = batch.prepare(step)
        marks.append(time.perf_counter())
        batch.append(inputs.rows, sampled)
        marks.append(time.perf_counter())
        times.append(np.diff(marks))
    # As in benchmarks/scheduler.py: medians per place of a window, then the mean over the places.
    steps = np.array(times).reshape(num_windows, WINDOW_STEPS, len(PHASES)) * 1e6
    medians = np.median(steps, axis=0).mean(axis=0)
    step_us = float(np.median(steps.sum(axis=2), axis=0).mean())
    phases = {f"{name} us": float(value) for name, value in zip(PHASES, medians, strict=True)}
    return {"rows": num_rows, **phases, "step us": step_us, "step us/row": step_us / num_rows}


def main() -> int:
    """Measure every number of rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,64,256,1024")
    parser.add_argument("--windows", type=int, default=12, help="of 32 steps each")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    results = [measure(int(rows), args.windows) for rows in args.rows.split(",")]
    print("  ".join(f"{name:>14}" for name in results[0]))
    for result in results:
        print("  ".join(f"{value:14.2f}" for value in result.values()))
    print(f"load average {os.getloadavg()[0]:.1f}")
    if args.json:
        args.json.write_text(json.dumps({"block_size": BLOCK_SIZE, "results": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
