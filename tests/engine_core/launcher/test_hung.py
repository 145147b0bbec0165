"""`splitserve serve` replaces a process whose loop stands still."""

from __future__ import annotations

import signal

from tests.engine_core.launcher.serving import FRONTEND, serving
from tests.engine_core.launcher.streams import Stream
from tests.engine_core.processes import wait_ended


def test_a_stopped_engine_is_killed_and_replaced() -> None:
    with serving() as server:
        url = server.url()
        text = server.complete(url)
        frontends = server.children(FRONTEND)
        engine = server.engine()
        engine.send_signal(signal.SIGSTOP)
        server.wait_for(r"engine-core hangs, killing it")
        server.wait_for(r"engine-core ended unexpectedly \(killed by SIGKILL\), restarting it")
        server.complete_until(url, text)
        assert server.engine() != engine
        assert server.children(FRONTEND) == frontends
        assert server.stop() == 0


def test_a_stopped_frontend_is_replaced_and_the_streams_of_another_go_on() -> None:
    with serving("--api-server-count", "2", "--simulated-step-ms", "20") as server:
        url = server.url()
        server.wait_all_ready(url, 2)
        victim, other = server.children(FRONTEND)
        victim.send_signal(signal.SIGSTOP)
        streams = [Stream(url) for _ in range(6)]
        server.wait_for(r"api-frontend \d hangs, killing it")
        assert wait_ended([victim], 60) == []
        after = server.children_when(FRONTEND, lambda found: len(found) == 2 and victim not in found)
        assert other in after
        assert [stream.finish() for stream in streams] == [(Stream.NUM_TOKENS, False)] * 6
        server.wait_all_ready(url, 2)
        assert server.stop() == 0


def test_idle_processes_are_left_alone() -> None:
    """An engine and a frontend that have nothing to do still show that their loops turn."""
    with serving("--simulated-step-ms", "1000") as server:
        url = server.url()
        before = server.engine(), server.children(FRONTEND)
        # Six steps, of which each takes half the longest silence.
        stream = Stream(url, num_tokens=6)
        assert stream.finish() == (6, False)
        assert (server.engine(), server.children(FRONTEND)) == before
        # Only what has been read is in its output.
        assert server.stop() == 0
        assert "hangs" not in server.output
