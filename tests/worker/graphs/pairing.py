"""Two workers over one checkpoint, one of which records decode steps: every step has to end alike in both."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.step_graphs import RowMasks
from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.base import Device
from splitserve.worker.graphs.decode_graphs import DecodeGraph
from splitserve.worker.worker import Worker
from tests.worker.runner.driver import Job, num_window_groups_of
from tests.worker.runner.test_batch_invariance import GRAMMARS, random_sampling


@dataclass
class Calls:
    """How often recorded steps were begun, how often they drew without the sampler, and with masks."""

    forward: int = 0
    draw: int = 0
    masked: int = 0


class Pair:
    """Stands in for a Worker: runs each step on both and compares all that the steps leave behind."""

    def __init__(
        self, config: WorkerConfig, num_blocks: int, num_host_blocks: int = 0, device: Device | None = None
    ) -> None:
        self.config = config
        self.workers = [
            Worker(msgspec.structs.replace(config, enforce_eager=enforce_eager), device)
            for enforce_eager in (False, True)
        ]
        for worker in self.workers:
            worker.load(lambda loaded_bytes, total_bytes: None)
            self.num_window_groups = num_window_groups_of(worker)
            worker.init_kv_cache(num_blocks * (1 + self.num_window_groups), num_host_blocks)

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        recorded, eager = (worker.execute(step) for worker in self.workers)
        assert _timeless(recorded) == _timeless(eager)
        self.check_integrity()
        return recorded

    def check_integrity(self) -> None:
        """Both batches hold the same."""
        recorded, eager = (batch_of(worker) for worker in self.workers)
        columns = zip(recorded.columns._fields, recorded.columns, eager.columns, strict=True)
        for name, ours, theirs in columns:
            assert np.array_equal(ours, theirs), name
        assert recorded.failures == eager.failures


def batch_of(worker: Worker) -> InputBatch:
    assert worker.runner is not None
    return worker.runner.batch


def pair_of(checkpoint: Path, device: Device | None = None, **settings: object) -> Pair:
    """A pair with few rows and small blocks."""
    limits = {"num_threads": 1, "max_num_seqs": 6, "max_num_batched_tokens": 64, "block_size": 4}
    config = WorkerConfig(model=str(checkpoint), **(limits | settings))  # type: ignore[arg-type]
    return Pair(config, 96, 40, device)


def count_calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Count the recorded steps from here on."""
    calls, forward, draw = Calls(), DecodeGraph.forward, DecodeGraph.draw

    def counted_forward(graph: DecodeGraph, rows: bytes) -> None:
        calls.forward += 1
        forward(graph, rows)

    def counted_draw(graph: DecodeGraph, masks: RowMasks | None) -> object:
        calls.draw += 1
        calls.masked += masks is not None
        return draw(graph, masks)

    monkeypatch.setattr(DecodeGraph, "forward", counted_forward)
    monkeypatch.setattr(DecodeGraph, "draw", counted_draw)
    return calls


def decoding_jobs(rng: random.Random, vocab_size: int, featured: float) -> list[Job]:
    """Short prompts and long answers; this share of them with any mix of features."""
    return [
        Job(
            prompt=[rng.randrange(vocab_size) for _ in range(rng.choice([1, 2, 5, 16]))],
            sampling=random_sampling(rng) if rng.random() < featured else plain_sampling(rng),
            num_outputs=rng.randint(10, 40),
        )
        for _ in range(10)
    ]


def plain_sampling(rng: random.Random) -> SequenceSampling:
    """Parameters that need nothing but the kernel."""
    return SequenceSampling(
        temperature=rng.choice([0.0, 0.8, 1.3]),
        top_p=rng.choice([1.0, 0.9]),
        top_k=rng.choice([0, 20]),
        min_p=rng.choice([0.0, 0.05]),
        seed=rng.getrandbits(64),
        max_tokens=64,
    )


def masked_sampling(rng: random.Random, vocab_size: int) -> SequenceSampling:
    """Parameters that need nothing but the kernel and perhaps a mask."""
    allowed = tuple(rng.sample(range(vocab_size), 60))
    masks: list[dict[str, object]] = [{}, {"allowed_token_ids": allowed}, {"grammar": rng.choice(GRAMMARS)}]
    return msgspec.structs.replace(plain_sampling(rng), **rng.choice(masks))


def _timeless(output: ModelRunnerOutput) -> ModelRunnerOutput:
    return msgspec.structs.replace(output, compute_s=0.0, move_s=0.0)
