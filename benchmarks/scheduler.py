"""What one step of steady decode costs in the engine: plan, encode, decode the answer, apply, outputs.

Usage: python -m benchmarks.scheduler [--rows 1,64,256,1024,4096] [--windows N] [--frontends N] [--kv-events]
           [--cpu-time] [--json FILE]

No worker runs: answers are made outside the timed phases. Prompts of 128 tokens are admitted as a budget of
8192 tokens per step lets them in, so rows cross block borders at different steps, as they do when serving.
A window is two blocks of steps, in which every row crosses two borders. "step" is the mean over the places of
a window of the median step at that place; "quiet step" is the median of all single steps.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from splitserve.engine_core.clock import SystemClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.engine.listeners import Listeners
from splitserve.engine_core.ipc.codec import encode, from_worker_decoder, pack_int32, unpack_int32
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, SchedulerOutput
from splitserve.engine_core.kv_events.format import encode_batch
from splitserve.engine_core.kv_events.recorder import KVEventRecorder
from splitserve.engine_core.sequence_sampling import SequenceSampling

PHASES = ("plan", "encode step", "decode answer", "apply", "outputs", "encode outputs", "KV events")
BLOCK_SIZE = 16
PROMPT_TOKENS = 128
BUDGET_TOKENS = 8192
WINDOW_STEPS = 2 * BLOCK_SIZE


def make_engine(
    num_rows: int, num_steps: int, num_frontends: int, kv_events: KVEventRecorder | None
) -> tuple[EngineCore, Worker]:
    """Return an engine whose rows all decode and will go on for num_steps steps."""
    num_tokens = PROMPT_TOKENS + num_steps + 2 * num_rows
    blocks_per_row = (num_tokens + BLOCK_SIZE) // BLOCK_SIZE
    config = SchedulerConfig(
        max_num_seqs=num_rows,
        max_num_batched_tokens=max(BUDGET_TOKENS, 2 * num_rows),
        max_num_waiting=num_rows,
        max_model_len=blocks_per_row * BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        num_blocks=num_rows * blocks_per_row * 102 // 100 + 2,
    )
    model = ModelInfo("", "", "float32", 32000, config.max_model_len, [2])
    engine = EngineCore(config, model, 1, SystemClock(), listeners=Listeners(kv_events=kv_events))
    rng = np.random.default_rng(0)
    for i in range(num_rows):
        message = AddRequest(
            handle=i,
            request_id=str(i),
            prompt_token_ids=pack_int32(rng.integers(10, 32000, PROMPT_TOKENS)),
            sampling=SequenceSampling(seed=0, max_tokens=None),
        )
        engine.add(b"frontend-%d" % (i % num_frontends), message)
    worker = Worker(num_rows)
    while engine.stats().num_waiting or worker.num_prefilling:
        run_step(engine, worker, kv_events)
    return engine, worker


class Worker:
    """Answers steps at no cost to what is measured: tokens that depend on row and step."""

    def __init__(self, num_rows: int) -> None:
        self._num_missing = np.full(num_rows, PROMPT_TOKENS, np.int64)

    @property
    def num_prefilling(self) -> int:
        """Rows whose prompt is not computed yet."""
        return int((self._num_missing > 0).sum())

    def answer(self, step: SchedulerOutput) -> bytes:
        """Return the encoded answer: a token of every row whose last known token is computed."""
        rows = unpack_int32(step.rows).astype(np.int64)
        self._num_missing[rows] -= unpack_int32(step.num_tokens)
        rows = rows[self._num_missing[rows] <= 0]
        token_ids = 10 + (rows * 7919 + step.step) % 30000
        return encode(ModelRunnerOutput(step.step, pack_int32(rows), pack_int32(token_ids)))


def run_step(
    engine: EngineCore,
    worker: Worker,
    kv_events: KVEventRecorder | None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Return the seconds of each phase of one step."""
    marks = [clock()]
    step = engine.plan()
    assert step is not None
    marks.append(clock())
    encode(step)
    marks.append(clock())
    frame = worker.answer(step)
    skipped = clock() - marks[-1]
    answer = from_worker_decoder.decode(frame)
    assert isinstance(answer, ModelRunnerOutput)
    marks.append(clock() - skipped)
    engine.apply(answer)
    marks.append(clock() - skipped)
    outputs = engine.take_outputs()
    marks.append(clock() - skipped)
    for message in outputs.values():
        encode(message)
    marks.append(clock() - skipped)
    if kv_events is not None and (events := kv_events.take()):
        encode_batch(events)
    marks.append(clock() - skipped)
    return np.diff(marks).tolist()


def measure(
    num_rows: int,
    num_windows: int,
    num_frontends: int,
    clock: Callable[[], float],
    kv_events: KVEventRecorder | None,
) -> dict[str, float]:
    """Return microseconds per step, and per step and row."""
    num_steps = num_windows * WINDOW_STEPS
    engine, worker = make_engine(num_rows, num_steps, num_frontends, kv_events)
    gc.collect()
    steps = np.array([run_step(engine, worker, kv_events, clock) for _ in range(num_steps)]) * 1e6
    engine.check_integrity()
    # Medians of the steps at the same place of a window, then their mean: all borders count, but not the
    # moments in which another process had the core.
    phases = np.median(steps.reshape(num_windows, WINDOW_STEPS, len(PHASES)), axis=0).mean(axis=0)
    step_us = float(np.median(steps.sum(axis=1).reshape(num_windows, WINDOW_STEPS), axis=0).mean())
    return {
        "rows": num_rows,
        **{f"{phase} us": float(value) for phase, value in zip(PHASES, phases, strict=True)},
        "quiet step us": float(np.median(steps.sum(axis=1))),
        "step us": step_us,
        "step us/row": step_us / num_rows,
    }


def print_table(results: list[dict[str, float]]) -> None:
    """Print one line per number of rows."""
    names = list(results[0])
    print("  ".join(f"{name:>{max(len(name), 8)}}" for name in names))
    for result in results:
        cells = [
            f"{value:{max(len(name), 8)}.{0 if name == 'rows' else 2}f}" for name, value in result.items()
        ]
        print("  ".join(cells), flush=True)


def main() -> int:
    """Measure every number of rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,64,256,1024,4096")
    parser.add_argument("--windows", type=int, default=12, help="of 32 steps each")
    parser.add_argument("--frontends", type=int, default=1)
    parser.add_argument(
        "--cpu-time", action="store_true", help="leave out the time other processes had the core"
    )
    parser.add_argument("--kv-events", action="store_true", help="record and encode what would be published")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    clock = time.thread_time if args.cpu_time else time.perf_counter
    results = []
    for rows in args.rows.split(","):
        recorder = KVEventRecorder(BLOCK_SIZE) if args.kv_events else None
        results.append(measure(int(rows), args.windows, args.frontends, clock, recorder))
    print_table(results)
    print(f"load average {os.getloadavg()[0]:.1f}")
    if args.json:
        args.json.write_text(json.dumps({"block_size": BLOCK_SIZE, "results": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
