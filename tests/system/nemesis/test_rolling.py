"""SIGHUP replaces every process in turn while streams go on as if nothing had happened."""

from __future__ import annotations

import signal

import pytest

from tests.system.nemesis.asks import mixed_asks
from tests.system.nemesis.play import assert_identical, disturb, kill, play
from tests.system.nemesis.stage import serving, wait_for

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

ASKS = mixed_asks(24, 100)
AFTER_EVENTS = 200


def test_a_rolling_restart_changes_no_stream_and_replaces_everything() -> None:
    with serving(num_frontends=2) as stage:
        reference = play(stage, ASKS)
        before = {*stage.pids("engine-core"), *stage.pids("api-frontend")}
        fault = kill(*stage.pids("serve"), number=signal.SIGHUP)
        disturb(stage, reference, AFTER_EVENTS, lambda: fault)
        wait_for(lambda: not before & set(stage.all_pids()), "every process is replaced")
        stage.wait_ready()
        assert_identical(play(stage, ASKS), reference, stage)
