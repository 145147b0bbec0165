"""A process that is killed or stands still costs streams a pause, and not a token of their answers."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.system.nemesis.asks import mixed_asks
from tests.system.nemesis.play import Fault, Run, disturb, kill, play, stop_until
from tests.system.nemesis.stage import Stage, is_gone, serving

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

ASKS = mixed_asks(32, 100)
# A tenth of what they bring: few, since one event may bring many tokens.
AFTER_EVENTS = 300


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def reference(stage: Stage) -> Run:
    run = play(stage, ASKS)
    assert all(history.is_whole for history in run.histories)
    return run


@pytest.mark.parametrize("kind", ["engine-core", "worker"])
def test_a_killed_process_is_replaced_and_its_streams_go_on(stage: Stage, reference: Run, kind: str) -> None:
    disturb(stage, reference, AFTER_EVENTS, lambda: kill(stage.pids(kind)[0]))
    stage.wait_ready()


@pytest.mark.parametrize("kind", ["engine-core", "worker"])
def test_a_process_that_stands_still_is_replaced_and_never_heard_again(
    stage: Stage, reference: Run, kind: str
) -> None:
    def stop() -> Fault:
        victim = stage.pids(kind)[0]
        return stop_until(lambda: is_gone(victim), victim)

    disturb(stage, reference, AFTER_EVENTS, stop)
    stage.wait_ready()


def test_engine_its_spare_and_worker_killed_together_are_replaced(stage: Stage, reference: Run) -> None:
    disturb(stage, reference, AFTER_EVENTS, lambda: kill(*stage.pids("engine-core"), *stage.pids("worker")))
    stage.wait_ready()


@pytest.fixture(scope="module")
def drafting_stage() -> Iterator[Stage]:
    with serving("--speculate", "ngram") as running:
        yield running


@pytest.mark.parametrize("kind", ["engine-core", "worker"])
def test_kills_change_no_token_of_a_server_that_drafts(
    drafting_stage: Stage, reference: Run, kind: str
) -> None:
    # The reference is of a server that does not.
    stage = drafting_stage
    disturb(stage, reference, AFTER_EVENTS, lambda: kill(stage.pids(kind)[0]))
    stage.wait_ready()
    assert "spec_decode_num_accepted_tokens_total" in httpx.get(f"{stage.url}/metrics").text
