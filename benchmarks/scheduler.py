"""What one steady decode step costs in the engine: plan, encode, decode the answer, apply, outputs.

Usage: python benchmarks/scheduler.py [--steps N] [--rows 1,64,256,1024] [--json FILE]

No worker runs: answers are made outside the timed phases. "steady" is the median step, in which no row
crosses a block border; "with borders" spreads the borders: one row in block_size crosses one in every step.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from engine_core.clock import SystemClock
from engine_core.config import SchedulerConfig
from engine_core.engine import EngineCore
from engine_core.ipc.codec import encode, from_worker_decoder, pack_int32, unpack_int32
from engine_core.ipc.messages import AddRequest, ModelInfo, ModelRunnerOutput
from engine_core.sampling_params import SamplingParams

PHASES = ("plan", "encode step", "decode answer", "apply", "outputs", "encode outputs")
BLOCK_SIZE = 16
PROMPT_TOKENS = 40


def make_engine(num_rows: int, num_steps: int, num_frontends: int, stagger: bool) -> EngineCore:
    blocks_per_row = (PROMPT_TOKENS + BLOCK_SIZE + num_steps + 16) // BLOCK_SIZE + 1
    config = SchedulerConfig(
        max_num_seqs=num_rows,
        max_num_batched_tokens=num_rows * (PROMPT_TOKENS + BLOCK_SIZE),
        max_num_waiting=num_rows,
        max_model_len=blocks_per_row * BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        num_blocks=num_rows * blocks_per_row + 2 + num_rows,
    )
    model = ModelInfo("", "", "float32", 32000, config.max_model_len, [2])
    engine = EngineCore(config, model, 1, SystemClock())
    rng = np.random.default_rng(0)
    for i in range(num_rows):
        # Staggered lengths spread the block borders evenly over the steps.
        length = PROMPT_TOKENS + (i % BLOCK_SIZE if stagger else 0)
        message = AddRequest(
            handle=i,
            request_id=str(i),
            prompt_token_ids=pack_int32(rng.integers(10, 32000, length)),
            sampling=SamplingParams(seed=0, max_tokens=None),
        )
        engine.add(b"frontend-%d" % (i % num_frontends), message)
    return engine


def answer_to(step: int, rows: bytes) -> bytes:
    token_ids = 10 + (unpack_int32(rows).astype(np.int64) * 7919 + step) % 30000
    return encode(ModelRunnerOutput(step, rows, pack_int32(token_ids)))


def run_step(engine: EngineCore) -> list[float]:
    """Seconds of each phase of one step."""
    marks = [time.perf_counter()]
    step = engine.plan()
    assert step is not None
    marks.append(time.perf_counter())
    encode(step)
    marks.append(time.perf_counter())
    frame = answer_to(step.step, step.rows)
    skipped = time.perf_counter() - marks[-1]
    answer = from_worker_decoder.decode(frame)
    assert isinstance(answer, ModelRunnerOutput)
    marks.append(time.perf_counter() - skipped)
    engine.apply(answer)
    marks.append(time.perf_counter() - skipped)
    outputs = engine.take_outputs()
    marks.append(time.perf_counter() - skipped)
    for message in outputs.values():
        encode(message)
    marks.append(time.perf_counter() - skipped)
    return np.diff(marks).tolist()


def measure(num_rows: int, num_steps: int, num_frontends: int) -> dict[str, float]:
    """Microseconds per step, and per step and request."""
    # All rows in step: borders fall into every 16th step, so the median step has none.
    engine = make_engine(num_rows, num_steps, num_frontends, stagger=False)
    run_step(engine)
    steady = np.median(np.array([run_step(engine) for _ in range(num_steps)]), axis=0) * 1e6
    # Borders spread out: one row in block_size crosses one in every step.
    engine = make_engine(num_rows, num_steps, num_frontends, stagger=True)
    run_step(engine)
    mixed = np.median(np.array([sum(run_step(engine)) for _ in range(num_steps)])) * 1e6
    return {
        "rows": num_rows,
        **{f"{phase} us": float(value) for phase, value in zip(PHASES, steady, strict=True)},
        "steady us": float(steady.sum()),
        "steady us/request": float(steady.sum() / num_rows),
        "with borders us": float(mixed),
        "with borders us/request": float(mixed / num_rows),
    }


def print_table(results: list[dict[str, float]]) -> None:
    names = list(results[0])
    print("  ".join(f"{name:>{max(len(name), 8)}}" for name in names))
    for result in results:
        cells = [
            f"{value:{max(len(name), 8)}.{0 if name == 'rows' else 2}f}" for name, value in result.items()
        ]
        print("  ".join(cells))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--rows", default="1,64,256,1024")
    parser.add_argument("--frontends", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    results = [measure(int(rows), args.steps, args.frontends) for rows in args.rows.split(",")]
    print_table(results)
    if args.json:
        args.json.write_text(json.dumps({"block_size": BLOCK_SIZE, "results": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
