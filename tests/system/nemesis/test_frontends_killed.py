"""What dies with a process whose connections are the clients': its own streams, and no others."""

from __future__ import annotations

import signal

import pytest

from tests.system.nemesis.asks import mixed_asks
from tests.system.nemesis.play import assert_identical, assert_only_connections_broke, kill, play, stop_until
from tests.system.nemesis.stage import is_gone, serving, wait_for

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

ASKS = mixed_asks(16, 60)
AFTER_EVENTS = 100


def test_a_killed_frontend_and_one_that_stands_still_are_replaced() -> None:
    with serving(num_frontends=2) as stage:
        reference = play(stage, ASKS)
        victim = stage.pids("api-frontend")[0]
        assert_only_connections_broke(play(stage, ASKS, kill(victim), AFTER_EVENTS), reference)
        stage.wait_ready()
        victim = stage.pids("api-frontend")[0]
        fault = stop_until(lambda: is_gone(victim), victim)
        assert_only_connections_broke(play(stage, ASKS, fault, AFTER_EVENTS), reference)
        stage.wait_ready()


def test_streams_end_in_peace_when_the_supervisor_is_killed_and_nothing_is_left() -> None:
    # A beam search opens its next step at an engine, and one that drains takes none.
    asks = [ask for ask in ASKS if "use_beam_search" not in ask.body]
    with serving() as stage:
        reference = play(stage, asks)
        (server,) = stage.pids("serve")
        assert_identical(
            play(stage, asks, kill(server, number=signal.SIGKILL), AFTER_EVENTS), reference, stage
        )
        wait_for(lambda: not stage.all_pids(), "nothing of the server is left")
