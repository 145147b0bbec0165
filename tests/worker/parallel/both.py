"""One model on one rank and on several: the same jobs for both, and what comes of them compared."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.worker import Worker
from tests.checkpoints import VOCAB_SIZE
from tests.worker.parallel.ranks import ParallelWorker, RankPool
from tests.worker.runner.driver import Driver, Job, num_window_groups_of
from tests.worker.runner.test_batch_invariance import random_sampling

NUM_BLOCKS = 96
NUM_HOST_BLOCKS = 20
NUM_JOBS = 8

# Heads for four ranks; fewer KV heads than that, so that some ranks hold the same one.
GQA = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2}


class Both(NamedTuple):
    """One model on one rank, and on several."""

    single: Worker
    parallel: ParallelWorker
    config: WorkerConfig

    def run_single(self, jobs: list[Job]) -> list[Job]:
        """Every job alone, straight."""
        done, num_groups = [job.again() for job in jobs], num_window_groups_of(self.single)
        for job in done:
            Driver(self.single, self.config, NUM_BLOCKS, num_window_groups=num_groups).run([job])
        return done

    def run_parallel(self, jobs: list[Job], rng: random.Random | None = None) -> list[Job]:
        """All jobs at once; with an rng chunked, preempted and mixed at random."""
        done = [job.again() for job in jobs]
        tells_tokens = self.parallel.config.pipeline_parallel_size > 1
        sizes = (NUM_BLOCKS, rng, NUM_HOST_BLOCKS, tells_tokens, num_window_groups_of(self.single))
        Driver(self.parallel, self.config, *sizes).run(done)
        return done


MakeBoth = Callable[..., Both]


@pytest.fixture(scope="module")
def make_both(ranks: RankPool) -> MakeBoth:
    def make(
        path: Path,
        num_ranks: int,
        quantization: str = "none",
        num_stages: int = 1,
        num_adapters: int = 0,
        splits_experts: bool = False,
        model_impl: str = "auto",
    ) -> Both:
        config = WorkerConfig(
            model=str(path),
            model_impl=model_impl,
            quantization=quantization,
            num_threads=1,
            max_num_seqs=6,
            max_num_batched_tokens=64,
            block_size=4,
            lora_dir="/" if num_adapters else "",
            max_loras=num_adapters or 1,
            enable_expert_parallel=splits_experts,
        )
        single = Worker(config)
        single.load()
        num_blocks = NUM_BLOCKS * (1 + num_window_groups_of(single))
        single.init_kv_cache(num_blocks, NUM_HOST_BLOCKS)
        parallel = ranks.load(
            msgspec.structs.replace(config, tensor_parallel_size=num_ranks, pipeline_parallel_size=num_stages)
        )
        parallel.init_kv_cache(num_blocks, NUM_HOST_BLOCKS)
        return Both(single, parallel, config)

    return make


def jobs_of(seed: int) -> list[Job]:
    """Every mix of sampling parameters, logprobs among them; the first is greedy."""
    rng = random.Random(seed)
    jobs = [
        Job(
            [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([1, 5, 16, 33, 61]))],
            random_sampling(rng),
            10,
        )
        for _ in range(NUM_JOBS)
    ]
    jobs[0].sampling = SequenceSampling(temperature=0.0, max_tokens=32, logprobs=3, prompt_logprobs=2)
    return jobs


def assert_tokens_of_one(both: Both, seed: int) -> None:
    """Several ranks, with the jobs mixed at random, give the tokens of one, and nearly its logprobs."""
    jobs = jobs_of(seed)
    expected, found = both.run_single(jobs), both.run_parallel(jobs, random.Random(seed))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.error is None
        assert ours.tokens == theirs.tokens
        assert_close(ours, theirs, tolerance=1e-4)


def assert_close(found: Job, expected: Job, tolerance: float) -> None:
    """The logprobs of both, prompt and output, where the same tokens were ranked."""
    for ours, theirs in (
        (found.logprobs, expected.logprobs),
        (found.prompt_logprobs, expected.prompt_logprobs),
    ):
        assert ours.keys() == theirs.keys()
        for index in ours:
            first = [np.frombuffer(job[index][2], np.float32)[0] for job in (ours, theirs)]
            assert first[0] == pytest.approx(first[1], abs=tolerance)
