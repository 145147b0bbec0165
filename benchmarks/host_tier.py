"""What a prefix costs that the KV pool had to give up: computed again, loaded from host memory, never lost.

    python -m benchmarks.host_tier [--model DIR] [--tokens 512] [--rounds 5] [--threads 2] [--json FILE]

Three engines in one process, over one model: a pool for one prompt without CPU offload, the same pool with
one, and a pool for all prompts. Each round asks every prompt for one token, of each engine in turn. Time is
from the request to its token; the first round is left out.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

from splitserve.engine_core.clock import SystemClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.executor.inproc import InprocExecutor
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.ipc.worker_messages import KVCacheReady, ModelRunnerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.worker import Worker

BLOCK_SIZE = 16
NUM_PROMPTS = 4
DEMO_MODEL = Path(__file__).parent.parent / "engine_core" / "demo_model"
FRONTEND = b"f"


class Bench:
    """An engine and a worker with a pool of so many blocks, and so many behind it in host memory."""

    def __init__(self, model: str, threads: int, tokens: int, num_blocks: int, num_host_blocks: int) -> None:
        limits: dict[str, Any] = {
            "max_num_seqs": 4,
            "max_num_batched_tokens": tokens + 1,
            "block_size": BLOCK_SIZE,
        }
        worker = Worker(WorkerConfig(model=model, num_threads=threads, **limits))
        info = worker.load().model
        self._executor = InprocExecutor(worker)
        self._executor.init_kv_cache(num_blocks, num_host_blocks)
        (cache,) = self._executor.receive()
        assert isinstance(cache, KVCacheReady)
        config = SchedulerConfig(
            **limits,
            num_blocks=num_blocks,
            max_model_len=info.max_model_len,
            num_host_blocks=num_host_blocks,
            move_block_ns=cache.move_block_ns,
        )
        self.move_us = cache.move_block_ns / 1e3
        self.engine = EngineCore(config, info, 1, SystemClock())
        self._num_requests = 0

    def first_token_s(self, prompt: list[int]) -> float:
        """Seconds until the engine has the one token it was asked for."""
        self._num_requests += 1
        handle = self._num_requests
        sampling = SequenceSampling(seed=1, temperature=0.0, max_tokens=1)
        started = time.perf_counter()
        self.engine.add(FRONTEND, AddRequest(handle, f"r{handle}", pack_int32(prompt), sampling))
        while (step := self.engine.plan()) is not None:
            self._executor.submit(step)
            (output,) = self._executor.receive()
            assert isinstance(output, ModelRunnerOutput)
            self.engine.apply(output)
        self.engine.take_outputs()
        return time.perf_counter() - started


def measure(benches: dict[str, Bench], tokens: int, rounds: int) -> dict[str, float]:
    """Return the median milliseconds to the first token of a prompt that was asked for before."""
    rng = random.Random(1)
    prompts = [[rng.randrange(8, 1000) for _ in range(tokens)] for _ in range(NUM_PROMPTS)]
    times: dict[str, list[float]] = {name: [] for name in benches}
    for _ in range(rounds + 1):
        for prompt in prompts:
            for name, bench in benches.items():
                times[name].append(bench.first_token_s(prompt))
    return {name: 1e3 * statistics.median(each[NUM_PROMPTS:]) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=str(DEMO_MODEL), help="checkpoint (default: the demo model)")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of a prompt (default: 512)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    one = -(-options.tokens // BLOCK_SIZE) + 2
    sizes = {
        "computed again": (one, 0),
        "loaded": (one, NUM_PROMPTS * one),
        "still in the pool": (NUM_PROMPTS * one, 0),
    }
    benches = {
        name: Bench(options.model, options.threads, options.tokens, *size) for name, size in sizes.items()
    }
    medians_ms = measure(benches, options.tokens, options.rounds)
    move_us = benches["loaded"].move_us
    stats = benches["loaded"].engine.stats()
    print(f"{options.tokens} tokens, {options.threads} threads; {move_us:.1f} us per block moved")
    print(f"{stats.num_saved_blocks} blocks saved, {stats.num_loaded_blocks} loaded")
    for name, median_ms in medians_ms.items():
        print(f"{name:<18} {median_ms:>9.2f} ms")
    if options.json:
        options.json.write_text(json.dumps({"first_token_ms": medians_ms, "move_us": move_us}, indent=2))


if __name__ == "__main__":
    main()
