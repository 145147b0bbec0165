"""A request's tokens and logprobs do not depend on what runs beside it, nor on how it is cut into steps."""

from __future__ import annotations

import random

import msgspec
import pytest
from llguidance import LLMatcher

from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.worker import Worker
from tests.worker.runner.checkpoints import VOCAB
from tests.worker.runner.conftest import NUM_BLOCKS
from tests.worker.runner.driver import Driver, Job

NUM_JOBS = 14
GRAMMARS = [
    None,
    LLMatcher.grammar_from_json_schema({"type": "object"}, overrides={"whitespace_flexible": False}),
    LLMatcher.grammar_from_regex("[a-z]+( [0-9]{2,4})*"),
]


def random_sampling(rng: random.Random) -> SequenceSampling:
    """Any mix of every parameter; about a third is greedy."""
    min_tokens = rng.choice([0, 0, 3])
    logprobs = rng.choice([None, 0, 4])
    asked = [] if logprobs is None else rng.choices(range(VOCAB), k=rng.choice([0, 0, 5]))
    return SequenceSampling(
        temperature=rng.choice([0.0, 0.7, 1.0, 1.6]),
        top_p=rng.choice([1.0, 0.9, 0.5]),
        top_k=rng.choice([0, 0, 5, 40]),
        min_p=rng.choice([0.0, 0.0, 0.05]),
        presence_penalty=rng.choice([0.0, 0.0, 0.8]),
        frequency_penalty=rng.choice([0.0, 0.0, -0.6]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
        seed=rng.getrandbits(64),
        max_tokens=32,
        min_tokens=min_tokens,
        stop_token_ids=tuple(rng.sample(range(VOCAB), 3)) if min_tokens else (),
        logprobs=logprobs,
        prompt_logprobs=rng.choice([None, None, 2]),
        logit_bias={rng.randrange(VOCAB): rng.uniform(-5, 5) for _ in range(rng.choice([0, 0, 7]))},
        allowed_token_ids=rng.choice([None, None, tuple(rng.sample(range(VOCAB), 60))]),
        bad_word_token_ids=tuple(random_bad_word(rng) for _ in range(rng.choice([0, 0, 40]))),
        logprob_token_ids=tuple(asked),
    )


def with_grammar(sampling: SequenceSampling, rng: random.Random) -> SequenceSampling:
    """The same, perhaps with a grammar: beside other masks it could leave no token."""
    if sampling.allowed_token_ids is not None or sampling.bad_word_token_ids:
        return sampling
    return msgspec.structs.replace(sampling, grammar=rng.choice(GRAMMARS))


def random_bad_word(rng: random.Random) -> tuple[int, ...]:
    """Mostly two tokens, the first one of few, so that prefixes are met."""
    return tuple(rng.randrange(0, VOCAB, 9) for _ in range(rng.choice([1, 2, 2, 3])))


def random_jobs(rng: random.Random) -> list[Job]:
    return [
        Job(
            prompt=[rng.randrange(VOCAB) for _ in range(rng.choice([1, 2, 5, 16, 33, 61]))],
            sampling=with_grammar(random_sampling(rng), rng),
            num_outputs=rng.randint(1, 14),
        )
        for _ in range(NUM_JOBS)
    ]


def run_alone(worker: Worker, config: WorkerConfig, job: Job) -> Job:
    alone = job.again()
    Driver(worker, config, NUM_BLOCKS).run([alone])
    return alone


@pytest.mark.parametrize(
    ("fixture", "seed"),
    [
        *((name, seed) for name in ("tiny_worker", "tiny_bf16_worker") for seed in range(20)),
        *((name, seed) for name in ("tiny_int8_cache_worker", "tiny_fp8_cache_worker") for seed in range(5)),
    ],
)
def test_requests_in_any_company_equal_themselves_alone(
    fixture: str, seed: int, request: pytest.FixtureRequest
) -> None:
    worker, config = request.getfixturevalue(fixture)
    rng = random.Random(seed)
    jobs = random_jobs(rng)
    driver = Driver(worker, config, NUM_BLOCKS, rng)
    driver.run(jobs)
    assert driver.mixed_steps > 0
    for job in jobs:
        alone = run_alone(worker, config, job)
        assert (job.error, alone.error) == (None, None)
        assert job == alone


def test_thread_count_does_not_change_a_token(tiny_worker: tuple[Worker, WorkerConfig]) -> None:
    from splitserve.worker.ops.cpu import ops

    worker, config = tiny_worker
    jobs = random_jobs(random.Random(77))
    again = [job.again() for job in jobs]
    Driver(worker, config, NUM_BLOCKS).run(jobs)
    ops.set_num_threads(3)
    try:
        Driver(worker, config, NUM_BLOCKS).run(again)
    finally:
        ops.set_num_threads(1)
    assert again == jobs
