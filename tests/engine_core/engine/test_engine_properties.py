"""Every request ends once with the tokens of a run alone, whatever arrives when, and nothing leaks.

The driver checks the engine's bookkeeping after every event; the simulated worker checks in every step that
each row attends to its own tokens only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.executor.simulated.executor import FaultKind, ScriptedFault
from splitserve.engine_core.executor.simulated.tokens import TokenRule
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.messages import FinishReason
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from splitserve.engine_core.scheduler.pacing.chunks import PlannedStep
from splitserve.engine_core.scheduler.pacing.prefill_cap import CapBeside, PrefillCap
from splitserve.engine_core.scheduler.running import RunningRows
from splitserve.engine_core.sequence_sampling import RepetitionDetection
from tests.engine_core.engine_driver import COMPLETE, EngineDriver

# Few tokens and shared stems make equal prefixes, stops and prefix hits common.
STEMS: tuple[list[int], ...] = ([*range(1, 8), *range(1, 8), 1, 2], [3] * 12, [])
TENANTS = ("", "a", "b")

SETTINGS = settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@dataclass(frozen=True)
class Arrival:
    stem: int
    stem_len: int
    tail: tuple[int, ...]
    frontend: int
    tenant: int
    priority: int
    max_tokens: int | None
    min_tokens: int
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    logprobs: int | None
    prompt_logprobs: int | None
    num_resumed: int
    repetition: RepetitionDetection | None
    timeout_s: float
    queue_timeout_s: float

    @property
    def prompt(self) -> list[int]:
        return [*STEMS[self.stem][: self.stem_len], *self.tail]


arrivals = st.builds(
    Arrival,
    stem=st.integers(0, 2),
    stem_len=st.integers(0, 16),
    tail=st.lists(st.integers(0, 7), min_size=1, max_size=6).map(tuple),
    frontend=st.integers(0, 2),
    tenant=st.sampled_from([0, 0, 0, 1, 2]),
    priority=st.integers(-1, 2),
    max_tokens=st.sampled_from([None, 0, 1, 2, 5, 12]),
    min_tokens=st.sampled_from([0, 0, 0, 1, 3]),
    stop_token_ids=st.sampled_from([(), (), (5,), (1, 6)]),
    ignore_eos=st.booleans(),
    logprobs=st.sampled_from([None, None, 0, 2]),
    prompt_logprobs=st.sampled_from([None, None, None, 0, 1]),
    num_resumed=st.sampled_from([0, 0, 0, 1, 4, 100]),
    repetition=st.sampled_from([None, None, RepetitionDetection(2), RepetitionDetection(9, 1, 3)]),
    timeout_s=st.sampled_from([0.0, 0.0, 0.0, 0.0, 4.0, 25.0]),
    queue_timeout_s=st.sampled_from([0.0, 0.0, 0.0, 2.0, 30.0]),
)

events = st.one_of(
    arrivals,
    arrivals,
    arrivals,
    st.tuples(st.just("turns"), st.integers(1, 6)),
    st.tuples(st.just("plan"), st.just(0)),
    st.tuples(st.just("abort"), st.integers(0, 30)),
    st.tuples(st.just("leave"), st.integers(0, 2)),
    st.tuples(st.just("reset"), st.just(0)),
)

configs = st.builds(
    SchedulerConfig,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 20),
    max_prefill_tokens=st.sampled_from([0, 0, 1, 4]),
    max_num_waiting=st.just(100),
    max_model_len=st.integers(24, 48),
    block_size=st.integers(1, 5),
    num_blocks=st.integers(24, 40),
    policy=st.sampled_from(["fcfs", "priority", "fair"]),
    enable_prefix_caching=st.sampled_from([True, True, True, False]),
    tenant_weights=st.sampled_from([{}, {"a": 3}]),
    num_host_blocks=st.sampled_from([0, 0, 1, 4, 100]),
    victim=st.sampled_from(["cost", "cost", "last"]),
    num_speculative_tokens=st.sampled_from([0, 0, 1, 3, 8]),
)


def with_tight_pool(config: SchedulerConfig) -> SchedulerConfig:
    """As few blocks as one longest prompt and a token need, so that two rows can hardly coexist."""
    return SchedulerConfig(
        **{
            **{name: getattr(config, name) for name in config.__struct_fields__},
            "num_blocks": -(-24 // config.block_size),
        }
    )


def arrive(driver: EngineDriver, arrival: Arrival) -> None:
    max_tokens = arrival.max_tokens
    driver.add(
        arrival.prompt,
        b"frontend-%d" % arrival.frontend,
        num_resumed=arrival.num_resumed,
        priority=arrival.priority,
        tenant=TENANTS[arrival.tenant],
        timeout_s=arrival.timeout_s,
        queue_timeout_s=arrival.queue_timeout_s,
        max_tokens=max_tokens,
        min_tokens=arrival.min_tokens if max_tokens is None else min(arrival.min_tokens, max_tokens),
        stop_token_ids=arrival.stop_token_ids,
        ignore_eos=arrival.ignore_eos,
        logprobs=arrival.logprobs,
        prompt_logprobs=arrival.prompt_logprobs,
        repetition_detection=arrival.repetition,
        temperature=1.0,
        seed=arrival.priority + 1,
    )


def play(driver: EngineDriver, script: list[Arrival | tuple[str, int]]) -> None:
    for event in script:
        if isinstance(event, Arrival):
            arrive(driver, event)
            continue
        kind, number = event
        if kind == "turns":
            for _ in range(number):
                driver.engine.expire()
                driver.turn()
        elif kind == "plan":
            driver.plan()
        elif kind == "abort":
            sequences = [sequence for sequence in driver.sequences.values() if sequence.is_open]
            if sequences:
                driver.abort(sequences[number % len(sequences)])
        elif kind == "leave":
            driver.leave(b"frontend-%d" % number)
        else:
            driver.engine.reset_prefix_cache()
            driver.check()


def max_turns(driver: EngineDriver) -> int:
    """An upper bound of the turns all requests take if the first in order advances in every other turn.

    The first in order needs at most one turn per token of its own. Each admission may push a later request
    back to its beginning once, but not under fcfs with victims from the end of the order.
    """
    sequences = driver.sequences.values()
    num_tokens = sum(len(sequence.prompt) + len(sequence.expected) + 1 for sequence in sequences)
    restarts = 1 if driver.config.policy == "fcfs" and driver.config.victim == "last" else len(sequences)
    return 2 * num_tokens * restarts + 10


rules = st.builds(
    TokenRule,
    vocab_size=st.just(8),
    eos_token_ids=st.just((0,)),
    eos_probability=st.sampled_from([0.0, 0.1, 0.4]),
)


@SETTINGS
@given(config=configs, rule=rules, depth=st.integers(1, 2), script=st.lists(events, min_size=1, max_size=25))
def test_every_request_ends_once_with_the_tokens_of_a_run_alone(
    config: SchedulerConfig, rule: TokenRule, depth: int, script: list[Arrival | tuple[str, int]]
) -> None:
    driver = EngineDriver(config, rule, depth=depth)
    play(driver, script)
    driver.run(max_turns(driver))


@SETTINGS
@given(
    config=configs, rule=rules, depth=st.integers(1, 2), script=st.lists(arrivals, min_size=2, max_size=12)
)
def test_a_pool_for_barely_one_request_still_serves_all(
    config: SchedulerConfig, rule: TokenRule, depth: int, script: list[Arrival]
) -> None:
    driver = EngineDriver(with_tight_pool(config), rule, depth=depth)
    play(driver, list(script))
    driver.run(max_turns(driver))


def draw_caps(engine: EngineCore, caps: list[PrefillCap]) -> None:
    """Plan each step with the next of the caps, and check that it holds it while any row decodes."""
    scheduler, drawn = engine.scheduler, cycle(caps)
    schedule = scheduler.schedule

    def planned(cap_beside: CapBeside | None = None) -> SchedulerOutput | None:
        cap = next(drawn)
        output = schedule(lambda num_decoding: cap)
        if output is not None:
            check_cap(cap, scheduler.in_flight[-1], scheduler.running)
        return output

    scheduler.schedule = planned  # type: ignore[method-assign]


def check_cap(cap: PrefillCap, step: PlannedStep, running: RunningRows) -> None:
    num_tokens = unpack_int32(step.packed_num_tokens).astype(np.int64)
    prefill = num_tokens > 1
    # A newcomer may have one token to compute; it does not make the step one that decodes.
    if (~prefill & (running.first_step[step.rows] < step.step)).any():
        chunks, ends = num_tokens[prefill], step.num_computed_tokens[prefill]
        spent = (chunks * (2 * (cap.doubling_context + ends) - chunks)).sum()
        assert spent <= 2 * cap.doubling_context * cap.num_tokens or chunks.sum() <= cap.min_tokens


@SETTINGS
@given(
    config=configs,
    depth=st.integers(1, 2),
    script=st.lists(events, min_size=1, max_size=25),
    caps=st.lists(
        st.builds(
            PrefillCap,
            num_tokens=st.integers(0, 8),
            doubling_context=st.sampled_from([1, 10, 2**30]),
            min_tokens=st.integers(1, 4),
            max_context=st.just(2**31),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_a_prefill_cap_changes_no_token_and_starves_nobody(
    config: SchedulerConfig, depth: int, script: list[Arrival | tuple[str, int]], caps: list[PrefillCap]
) -> None:
    driver = EngineDriver(config, TokenRule(8, (0,)), depth=depth)
    draw_caps(driver.engine, caps)
    play(driver, script)
    driver.run(max_turns(driver))


@SETTINGS
@given(
    config=configs,
    depth=st.integers(1, 2),
    script=st.lists(arrivals, min_size=1, max_size=8),
    fault=st.tuples(st.integers(1, 12), st.integers(0, 5)),
)
def test_a_row_error_ends_one_request_and_no_other(
    config: SchedulerConfig, depth: int, script: list[Arrival], fault: tuple[int, int]
) -> None:
    faults = [ScriptedFault(FaultKind.ROW_ERROR, step=fault[0], place=fault[1])]
    driver = EngineDriver(with_tight_pool(config), TokenRule(8, (0,)), depth=depth, faults=faults)
    play(driver, list(script))
    driver.run(max_turns(driver))
    ends = [sequence.finished for sequence in driver.sequences.values() if sequence.finished is not None]
    failed = [end for end in ends if end.error_code == "simulated_fault"]
    assert len(failed) <= 1
    timeouts = ("timeout", "queue_timeout")
    assert all(end.reason in COMPLETE or end.error_code in timeouts for end in ends if end not in failed)


@SETTINGS
@given(
    config=configs,
    depth=st.integers(1, 2),
    script=st.lists(events, min_size=1, max_size=12),
    steps=st.sets(st.integers(1, 30), max_size=6),
    window=st.sampled_from([0, 0, 5]),
)
def test_steps_that_run_out_of_memory_change_no_token(
    config: SchedulerConfig,
    depth: int,
    script: list[Arrival | tuple[str, int]],
    steps: set[int],
    window: int,
) -> None:
    faults = [ScriptedFault(FaultKind.OUT_OF_MEMORY, step) for step in steps]
    rule = TokenRule(8, (0,))
    driver = EngineDriver(config, rule, depth=depth, faults=faults, sliding_window=window)
    play(driver, script)
    driver.run(10 * max_turns(driver))
    ends = [sequence.finished for sequence in driver.sequences.values() if sequence.finished is not None]
    failed = [end for end in ends if end.error_code == "out_of_memory"]
    # Only a step of one token fails its request.
    assert len(failed) <= len(steps)
    timeouts = ("timeout", "queue_timeout")
    assert all(end.reason in COMPLETE or end.error_code in timeouts for end in ends if end not in failed)


@pytest.mark.parametrize("depth", [1, 2])
def test_random_pressure_really_preempts_and_hits_the_prefix_cache(depth: int) -> None:
    """Guards the properties above against never reaching the paths they are about."""
    config = SchedulerConfig(
        max_num_seqs=4, max_num_batched_tokens=16, max_model_len=40, block_size=2, num_blocks=24
    )
    driver = EngineDriver(config, TokenRule(8, (0,)), depth=depth)
    for i in range(12):
        driver.add([*STEMS[0][:8], i % 8], max_tokens=20)
    driver.run()
    stats = driver.engine.stats()
    assert stats.num_preemptions > 0
    assert stats.prefix_cache_hits > 0
    assert all(
        s.finished is not None and s.finished.reason is FinishReason.LENGTH for s in driver.sequences.values()
    )
