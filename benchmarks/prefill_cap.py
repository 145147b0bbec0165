"""What do 16 streams feel while 4,000-token prompts arrive, with and without --target-itl-ms?

Usage: python -m benchmarks.prefill_cap [--model DIR] [--targets 0,25,50,100,200] [--prompts N]
           [--prompt-tokens N] [--json FILE]

Drives the real engine, two steps in flight, on an injected clock with a modelled machine; no model runs, so
the figures are the same everywhere. A step takes its fixed time, and per decoding row, per prefill token and
per thousand tokens of context that a prefill token attends to. Two machines: a GPU-like one whose steps are
far below the targets, and a CPU-like one whose decode step alone is above the shortest; its costs are near
those of a model of 135 M parameters on two cores, where 1,077 tokens of context double a prefill token's.

With --model a real worker computes the steps in this process, in one thread, and a step takes the CPU time it
took: what else runs on the machine hardly counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32, unpack_int64
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling

NUM_STREAMS = 16
STREAM_TOKENS = 3000
TARGETS_MS = (0, 25, 50, 100, 200)
MAX_NUM_SEQS = 64
NUM_BLOCKS = 8192


class Machine(NamedTuple):
    """Seconds of a step: fixed, per decoding row, per prefill token, and that per 1,000 tokens of context."""

    name: str
    fixed_s: float
    row_s: float
    token_s: float
    context_s: float


MACHINES = (
    Machine("gpu-like", 0.008, 0.00015, 0.00008, 0.000004),
    Machine("cpu-like", 0.020, 0.001, 0.0007, 0.00065),
)


class Worker:
    """Answers steps and knows how long each takes on the machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known = np.zeros(64, np.int64)
        self._computed = np.zeros(64, np.int64)

    def answer(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Return the output with its compute_s."""
        for row in step.new_rows:
            self._known[row.row] = len(row.token_ids) // 4
            self._computed[row.row] = row.num_computed_tokens
        rows, num_tokens = unpack_int32(step.rows), unpack_int32(step.num_tokens)
        prefill = num_tokens > 1
        # A token in the middle of a chunk attends to half of the chunk as well.
        pairs = ((self._computed[rows] + num_tokens / 2) * num_tokens)[prefill].sum()
        machine = self._machine
        seconds = machine.fixed_s + machine.row_s * int((~prefill).sum())
        seconds += machine.token_s * int(num_tokens[prefill].sum()) + machine.context_s * pairs / 1000
        self._computed[rows] += num_tokens
        sampling = rows[self._computed[rows] == self._known[rows]]
        self._known[sampling] += 1
        tokens = pack_int32(np.full(len(sampling), 7))
        return ModelRunnerOutput(step.step, pack_int32(sampling), tokens, compute_s=float(seconds))


class TimedWorker:
    """A real worker in this process, of one thread, whose steps take their CPU time."""

    def __init__(self, model: Path) -> None:
        # Here and not above, since it loads torch.
        from splitserve.worker.config import WorkerConfig
        from splitserve.worker.worker import Worker

        self._worker = Worker(WorkerConfig(model=str(model), num_threads=1, max_num_seqs=MAX_NUM_SEQS))
        self._worker.load(lambda loaded_bytes, total_bytes: None)
        self._worker.init_kv_cache(NUM_BLOCKS)

    def answer(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Return the output with its compute_s."""
        begin_s = time.process_time()
        output = self._worker.execute(step)
        return msgspec.structs.replace(output, compute_s=time.process_time() - begin_s)


class Load(NamedTuple):
    """How many long prompts arrive, and their length."""

    num_prompts: int = 8
    prompt_tokens: int = 4000


DEFAULT_LOAD = Load()


class Run:
    """One run: streams first, then a prompt whenever the last one has begun to answer."""

    def __init__(self, worker: Worker | TimedWorker, target_ms: float, load: Load) -> None:
        config = SchedulerConfig(
            max_num_seqs=MAX_NUM_SEQS,
            num_blocks=NUM_BLOCKS,
            max_model_len=8192,
            target_itl_s=target_ms / 1000,
        )
        self.clock = ManualClock()
        # The vocabulary bounds what a real worker may answer; prompts use its first thousand tokens.
        model = ModelInfo("", "", "float32", 2**18, 8192, [])
        self.engine = EngineCore(config, model, 1, self.clock)
        self.worker = worker
        self.load = load
        self.arrival_s: dict[int, float] = {}
        self.last_s: dict[int, float] = {}
        self.gaps_s: list[float] = []
        self.ttfts_s: list[float] = []

    def add(self, handle: int, num_prompt: int, max_tokens: int) -> None:
        """Send one request now."""
        prompt = np.random.default_rng(handle).integers(0, 1000, num_prompt)
        sampling = SequenceSampling(seed=0, max_tokens=max_tokens, ignore_eos=True)
        self.arrival_s[handle] = self.clock.monotonic()
        self.engine.add(b"f", AddRequest(handle, str(handle), pack_int32(prompt), sampling))

    def run(self) -> None:
        """Play until the prompts are through."""
        for handle in range(NUM_STREAMS):
            self.add(handle, 32, STREAM_TOKENS)
        flight: deque[ModelRunnerOutput] = deque()
        num_steps = 0
        while len(self.ttfts_s) < self.load.num_prompts:
            while len(flight) < 2 and (step := self.engine.plan()) is not None:
                flight.append(self.worker.answer(step))
            output = flight.popleft()
            self.clock.advance(output.compute_s)
            self.engine.apply(output)
            self.hear(num_steps)
            num_steps += 1
            if num_steps >= 50 and len(self.arrival_s) == NUM_STREAMS + len(self.ttfts_s):
                self.add(len(self.arrival_s), self.load.prompt_tokens, 1)

    def hear(self, num_steps: int) -> None:
        """Take the times of tokens."""
        now_s = self.clock.monotonic()
        for outputs in self.engine.take_outputs().values():
            for handle in unpack_int64(outputs.handles).tolist():
                if handle >= NUM_STREAMS:
                    self.ttfts_s.append(now_s - self.arrival_s[handle])
                elif handle in self.last_s and num_steps >= 50:
                    self.gaps_s.append(now_s - self.last_s[handle])
                self.last_s[handle] = now_s


def measure(machine: Machine | Path, target_ms: float, load: Load = DEFAULT_LOAD) -> dict[str, float | str]:
    """Return the figures of one run on a modelled machine, or of a model's directory; milliseconds."""
    run = Run(TimedWorker(machine) if isinstance(machine, Path) else Worker(machine), target_ms, load)
    run.run()
    gaps = np.array(run.gaps_s) * 1000
    return {
        "machine": machine.name,
        "target ms": target_ms,
        "ITL p50": float(np.percentile(gaps, 50)),
        "ITL p99": float(np.percentile(gaps, 99)),
        "ITL max": float(gaps.max()),
        "TTFT of prompts": float(np.mean(run.ttfts_s)) * 1000,
    }


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", type=Path, help="directory of a model to compute with")
    parser.add_argument(
        "--targets", type=lambda text: [int(ms) for ms in text.split(",")], default=TARGETS_MS
    )
    parser.add_argument("--prompts", type=int, default=DEFAULT_LOAD.num_prompts, help="long ones of a run")
    parser.add_argument("--prompt-tokens", type=int, default=DEFAULT_LOAD.prompt_tokens)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    args = parser.parse_args()
    load = Load(args.prompts, args.prompt_tokens)
    machines = [args.model] if args.model else MACHINES
    results = [measure(machine, target, load) for machine in machines for target in args.targets]
    print("  ".join(f"{name:>15}" for name in results[0]))
    for result in results:
        print("  ".join(f"{v:>15}" if isinstance(v, str) else f"{v:>15.1f}" for v in result.values()))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
