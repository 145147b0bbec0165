"""Under the fair policy backlogged tenants get tokens by weight within a stated bound, and nobody starves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.executor.simulated.tokens import TokenRule
from splitserve.engine_core.scheduler.waiting.tenants import MAX_WEIGHT, VIRTUAL_UNIT
from tests.engine_core.engine_driver import EngineDriver, Tracked

SETTINGS = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
NEVER_STOPS = TokenRule(vocab_size=50, eos_token_ids=())
MAX_LEN = 24


@dataclass(frozen=True)
class Job:
    tenant: str
    prompt_len: int
    max_tokens: int


def jobs_of(tenant: str) -> st.SearchStrategy[list[Job]]:
    job = st.builds(Job, tenant=st.just(tenant), prompt_len=st.integers(1, 12), max_tokens=st.integers(1, 12))
    return st.lists(job, min_size=10, max_size=25)


configs = st.builds(
    SchedulerConfig,
    max_num_seqs=st.integers(1, 4),
    max_num_batched_tokens=st.integers(4, 30),
    max_num_waiting=st.just(1000),
    max_model_len=st.just(MAX_LEN),
    block_size=st.just(4),
    num_blocks=st.integers(8, 30),
    policy=st.just("fair"),
    enable_prefix_caching=st.just(False),
    tenant_weights=st.fixed_dictionaries({"a": st.integers(1, 4), "b": st.integers(1, 4)}),
)


def add(driver: EngineDriver, job: Job, number: int) -> Tracked:
    prompt = [1 + (number + i) % 40 for i in range(job.prompt_len)]
    return driver.add(prompt, tenant=job.tenant, max_tokens=job.max_tokens)


def service(driver: EngineDriver, tenants: dict[int, str]) -> Counter[str]:
    """Tokens each tenant has had as its clients see it: prompts that began, and outputs that arrived."""
    had: Counter[str] = Counter()
    for (_, handle), sequence in driver.sequences.items():
        if sequence.started is not None:
            had[tenants[handle]] += len(sequence.prompt) + len(sequence.output)
    return had


def waits(driver: EngineDriver, tenant: str) -> bool:
    return any(r.tenant == tenant and not r.was_started for r in driver.engine.scheduler.waiting)


@SETTINGS
@given(
    config=configs,
    depth=st.integers(1, 2),
    first=jobs_of("a"),
    second=jobs_of("b"),
    head_start=st.integers(0, 8),
)
def test_two_backlogged_tenants_get_service_by_weight_within_the_bound(
    config: SchedulerConfig, depth: int, first: list[Job], second: list[Job], head_start: int
) -> None:
    """The bound: the longest prompt and the tokens of a full batch, over the smaller weight, both ways."""
    driver = EngineDriver(config, NEVER_STOPS, depth=depth)
    tenants = {add(driver, job, i).handle: job.tenant for i, job in enumerate(first)}
    for _ in range(head_start):
        driver.turn()
    tenants |= {add(driver, job, i).handle: job.tenant for i, job in enumerate(second)}
    weights = config.tenant_weights
    num_batch = min(config.max_num_seqs * MAX_LEN, config.num_blocks * config.block_size)
    bound = 2 * (12 + num_batch) / min(weights.values())
    before = service(driver, tenants)
    while waits(driver, "a") and waits(driver, "b"):
        driver.turn()
        now = service(driver, tenants)
        a, b = ((now[tenant] - before[tenant]) / weights[tenant] for tenant in "ab")
        # A token costs VIRTUAL_UNIT // weight, so shares are off by less than this.
        rounding = (a + b) * MAX_WEIGHT / VIRTUAL_UNIT
        assert abs(a - b) <= bound + rounding
    driver.run()


@SETTINGS
@given(config=configs, depth=st.integers(1, 2), first=jobs_of("a"), weight=st.sampled_from([1, 1000]))
def test_a_lone_request_starts_while_a_crowd_keeps_coming(
    config: SchedulerConfig, depth: int, first: list[Job], weight: int
) -> None:
    """It comes level with the crowd, whose every admission puts the crowd behind it."""
    config = SchedulerConfig(
        **{
            **{name: getattr(config, name) for name in config.__struct_fields__},
            "tenant_weights": {"a": weight},
        }
    )
    driver = EngineDriver(config, NEVER_STOPS, depth=depth)
    for i, job in enumerate(first):
        add(driver, job, i)
    driver.turn()
    lone = add(driver, Job("b", 3, 2), 0)
    num_turns = 0
    while lone.started is None:
        # The crowd never has fewer than ten requests waiting.
        if sum(1 for _ in driver.engine.scheduler.waiting) < 10:
            add(driver, first[num_turns % len(first)], num_turns)
        driver.turn()
        num_turns += 1
        # What a few full batches need from beginning to end.
        assert num_turns <= 4 * (MAX_LEN * config.max_num_seqs + MAX_LEN)
    for sequence in [s for s in driver.sequences.values() if s.is_open]:
        driver.abort(sequence)
    assert driver.engine.stats().num_running == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_preemption_and_priorities_inside_tenants_keep_the_counters_right(depth: int) -> None:
    """Guards the properties above against never preempting."""
    config = SchedulerConfig(
        max_num_seqs=4,
        max_num_batched_tokens=16,
        max_model_len=40,
        block_size=2,
        num_blocks=24,
        policy="fair",
        tenant_weights={"a": 2},
    )
    driver = EngineDriver(config, NEVER_STOPS, depth=depth)
    for i in range(18):
        driver.add([1 + i % 8] * 8, tenant="abc"[i % 3], priority=-i, max_tokens=20)
    driver.run()
    assert driver.engine.stats().num_preemptions > 0
