"""A frontend that leaves, falls silent or stops reading costs neither the others nor the engine."""

from __future__ import annotations

import zmq

from splitserve.engine_core.ipc.codec import encode
from splitserve.engine_core.ipc.messages import Hello, StepOutputs
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from tests.engine_core.server.harness import Engine, running_engine


def test_a_vanished_frontend_frees_its_requests_well_before_its_lease_ends(engine: Engine) -> None:
    leaver, witness = engine.joined(), engine.joined()
    leaver.add(1, [1] * 100, max_tokens=3900)
    before = witness.stats_when(lambda stats: stats.num_running == 1).finished.get("abort", 0)
    leaver.close()
    stats = witness.stats_when(lambda stats: stats.num_running == 0 and stats.num_waiting == 0)
    assert stats.num_free_blocks == stats.num_blocks
    assert stats.finished["abort"] == before + 1


def test_an_idle_frontend_that_vanishes_is_noticed_too(engine: Engine) -> None:
    witness = engine.joined()
    # Those of earlier tests have left as well by then.
    witness.stats_when(lambda stats: stats.num_frontends == 1)
    leaver = engine.joined()
    assert witness.ping().stats.num_frontends == 2
    leaver.close()
    witness.stats_when(lambda stats: stats.num_frontends == 1)


def test_a_silent_frontend_loses_its_lease_and_its_requests() -> None:
    with running_engine("--lease", "1", "--simulated-step-ms", "5") as engine:
        silent = engine.client("silent")
        silent.hello()
        silent.add(1, [1, 2, 3], max_tokens=4000)
        silent.wait_for(StepOutputs)
        witness = engine.joined("witness")
        # The witness's pings keep the witness; nothing of the silent one is heard.
        stats = witness.stats_when(lambda stats: stats.num_frontends == 1)
        assert stats.num_running == 0
        assert 'frontend=silent reason="lease expired"' in engine.log()
        assert silent.ping().epoch == 0, "it is told that its lease is gone"
        assert not silent.join().lease_renewed


def test_an_idle_frontend_loses_its_lease_too() -> None:
    with running_engine("--lease", "1") as engine:
        engine.joined("silent")
        witness = engine.joined("witness")
        witness.stats_when(lambda stats: stats.num_frontends == 1)
        assert 'frontend=silent reason="lease expired"' in engine.log()


def test_a_frontend_that_does_not_read_is_dropped_at_its_credit() -> None:
    with running_engine("--simulated-step-ms", "1", "--lease", "60") as engine:
        witness = engine.joined("witness")
        slow = engine.client_on(narrow_dealer(engine, b"slow"))
        slow.join()
        for handle in range(100):
            # Together several times what the credit and libzmq's queue of large messages hold.
            slow.add(handle, [handle + 1], max_tokens=4000, logprobs=20)
        assert len(witness.generate(1, [5], max_tokens=50)) == 50
        stats = witness.stats_when(lambda stats: stats.num_frontends == 1)
        assert stats.num_running == 0
        assert 'frontend=slow reason="reads too slowly"' in engine.log()


def narrow_dealer(engine: Engine, identity: bytes) -> zmq.Socket:
    """As little room as can be on the reader's side, so that everything piles up at the engine."""
    dealer = engine.context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.ROUTING_ID, identity)
    dealer.setsockopt(zmq.RCVHWM, 1)
    dealer.setsockopt(zmq.RCVBUF, 4096)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.connect(engine.address)
    return dealer


def test_a_flood_of_one_frontend_does_not_starve_another(engine: Engine) -> None:
    flooder, other = engine.joined("flood"), engine.joined("other")
    frame = encode(Hello(PROTOCOL_VERSION, "flood", "0"))
    for round_ in range(20):
        for _ in range(200):
            flooder.socket.send(frame)
        assert len(other.generate(round_, [round_ + 1], max_tokens=3)) == 3
        while flooder.socket.poll(0):
            flooder.socket.recv()
