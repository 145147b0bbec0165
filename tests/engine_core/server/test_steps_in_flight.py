"""Two steps in flight on real processes: the next step is at the worker early, a late stop leaves no trace.

The worker answers a step only once the next message has arrived, so every test would hang with one step in
flight.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from splitserve.engine_core.ipc.messages import Abort, FinishReason, StepOutputs
from splitserve.engine_core.scheduler.run_ahead import MAX_STEPS_AHEAD
from tests.engine_core.server.harness import Engine, RawClient, engine_with, running_engine

LATE = "answer when the next step is there"
PROMPT = list(range(3, 43))


@pytest.fixture(scope="module")
def reference() -> list[int]:
    """The first tokens after PROMPT, by a worker inside the engine."""
    with running_engine() as engine:
        return engine.joined().generate(1, PROMPT, max_tokens=40)


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine that prefills PROMPT in three chunks."""
    with engine_with(LATE, "--max-num-batched-tokens", "16") as engine:
        yield engine


def until_stop(client: RawClient, handle: int, reference: list[int], length: int) -> list[int]:
    """Generate up to the token that stands at reference[length - 1]."""
    stop = reference[length - 1]
    assert stop not in reference[: length - 1]
    return client.generate(handle, PROMPT, stop_token_ids=(stop,), max_tokens=None)


def test_a_stop_seen_late_is_neither_emitted_nor_counted(engine: Engine, reference: list[int]) -> None:
    client = engine.joined()
    assert until_stop(client, 1, reference, 9) == reference[:9]
    stats = client.ping().stats
    # Three steps of prefill gave one token. Up to three steps behind the stop were planned; the last is with
    # the worker still.
    assert stats.generation_tokens == 9
    assert 3 + 8 <= stats.num_steps < 3 + 8 + MAX_STEPS_AHEAD - 1
    assert (stats.num_running, stats.num_free_blocks) == (0, stats.num_blocks)
    # It ends when the next request's first step comes, and its token is not taken for that request's.
    assert until_stop(client, 2, reference, 5) == reference[:5]
    stats = client.ping().stats
    assert stats.generation_tokens == 9 + 5
    assert stats.finished == {"stop": 2}


def test_an_abort_leaves_the_steps_in_flight_without_an_owner(engine: Engine, reference: list[int]) -> None:
    client = engine.joined()
    client.add(1, PROMPT, max_tokens=4000)
    client.wait_for(StepOutputs, lambda outputs: len(outputs.token_ids) > 0)
    client.send(Abort([1]))
    client.ping()
    num_tokens = len(client.sequences[1].token_ids)
    assert until_stop(client, 2, reference, 7) == reference[:7]
    assert len(client.sequences[1].token_ids) == num_tokens
    stats = client.ping().stats
    assert stats.generation_tokens == num_tokens + 7
    assert stats.finished == {"abort": 1, "stop": 1}


def test_logprobs_end_with_the_last_token(engine: Engine, reference: list[int]) -> None:
    client = engine.joined()
    client.add(1, PROMPT, stop_token_ids=(reference[5],), logprobs=2, max_tokens=None)
    indices: list[int] = []
    while client.sequences[1].finished is None:
        outputs = client.wait_for(StepOutputs)
        indices += [entry.token_index for entry in outputs.logprobs]
    assert client.sequences[1].token_ids == reference[:6]
    assert indices == list(range(6))


def test_a_pool_too_small_for_all_preempts_between_the_steps(reference: list[int]) -> None:
    flags = ("--num-blocks", "8", "--block-size", "16", "--max-num-batched-tokens", "16")
    with engine_with("well", *flags) as engine:
        client = engine.joined()
        with engine.steps_held():
            for handle in range(4):
                client.add(handle, PROMPT, max_tokens=40)
            client.stats_when(lambda stats: stats.num_running + stats.num_waiting == 4)
        for handle in range(4):
            sequence = client.finish(handle)
            assert sequence.token_ids == reference
            assert sequence.finished is not None
            assert sequence.finished.reason is FinishReason.LENGTH
        stats = client.ping().stats
        assert stats.num_preemptions > 0
        assert stats.generation_tokens == 4 * 40
        assert stats.num_free_blocks == stats.num_blocks
