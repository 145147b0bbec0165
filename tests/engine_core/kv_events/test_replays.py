"""Replays without sockets: every event in every state, and the bounds."""

from __future__ import annotations

from collections import defaultdict

import pytest

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.ipc.transport import SendResult
from splitserve.engine_core.kv_events.history import BatchHistory, NumberedBatch
from splitserve.engine_core.kv_events.replays import (
    END_MARK,
    MAX_REPLAYS,
    MAX_SLICE_BATCHES,
    MAX_SLICE_BYTES,
    NEVER,
    RETRY_S,
    STALL_S,
    Replays,
)


class Peers:
    """Replays over a history of some batches, and what each peer got; peers can be full or gone."""

    def __init__(self, num_batches: int, payload: bytes = b"x") -> None:
        self.clock = ManualClock(100.0)
        self.history = BatchHistory(10**6, 10**9)
        self.got: dict[bytes, list[int]] = defaultdict(list)
        self.refusing: dict[bytes, SendResult] = {}
        self.replays = Replays(self.history, self.send, self.clock)
        for _ in range(num_batches):
            self.history.append(payload)

    def send(self, peer: bytes, batch: NumberedBatch) -> SendResult:
        result = self.refusing.get(peer, SendResult.SENT)
        if result is SendResult.SENT:
            self.got[peer].append(batch.number)
        return result

    def serve_all(self) -> int:
        """Serve until nothing is due any more; return how many slices it took."""
        for count in range(10**6):
            if self.replays.next_due_s() > self.clock.monotonic():
                return count
            self.replays.serve()
        raise AssertionError("it never ends")


@pytest.mark.parametrize(("start", "numbers"), [(0, [0, 1, 2]), (2, [2]), (3, []), (2**63, [])])
def test_a_peer_gets_what_it_asked_for_and_the_end_mark(start: int, numbers: list[int]) -> None:
    peers = Peers(3)
    assert peers.replays.next_due_s() == NEVER
    assert peers.replays.begin(b"p", start)
    peers.serve_all()
    assert peers.got[b"p"] == [*numbers, END_MARK.number]
    assert peers.replays.next_due_s() == NEVER


def test_what_is_published_meanwhile_belongs_to_it() -> None:
    peers = Peers(MAX_SLICE_BATCHES)
    peers.replays.begin(b"p", 0)
    peers.replays.serve()
    peers.history.append(b"late")
    peers.serve_all()
    assert peers.got[b"p"] == [*range(MAX_SLICE_BATCHES + 1), END_MARK.number]


def test_a_long_replay_is_served_in_slices() -> None:
    peers = Peers(10 * MAX_SLICE_BATCHES)
    peers.replays.begin(b"p", 0)
    assert peers.serve_all() == 11
    peers = Peers(4, bytes(MAX_SLICE_BYTES))
    peers.replays.begin(b"p", 0)
    assert peers.serve_all() == 5


def test_peers_take_turns() -> None:
    peers = Peers(3 * MAX_SLICE_BATCHES)
    for peer in (b"p", b"q"):
        peers.replays.begin(peer, 0)
    peers.replays.serve()
    assert len(peers.got[b"p"]) == len(peers.got[b"q"]) == MAX_SLICE_BATCHES


def test_a_peer_that_is_gone_is_forgotten() -> None:
    peers = Peers(3)
    peers.replays.begin(b"p", 0)
    peers.refusing[b"p"] = SendResult.GONE
    assert peers.serve_all() == 1
    assert peers.replays.next_due_s() == NEVER


def test_a_full_peer_is_tried_again_soon_and_misses_nothing() -> None:
    peers = Peers(3)
    peers.replays.begin(b"p", 0)
    peers.refusing[b"p"] = SendResult.FULL
    peers.serve_all()
    assert peers.replays.next_due_s() == peers.clock.monotonic() + RETRY_S
    peers.replays.serve()
    assert peers.got[b"p"] == []
    peers.clock.advance(RETRY_S)
    del peers.refusing[b"p"]
    peers.serve_all()
    assert peers.got[b"p"] == [0, 1, 2, END_MARK.number]


def test_a_peer_that_never_reads_is_given_up() -> None:
    peers = Peers(3)
    peers.replays.begin(b"p", 0)
    peers.refusing[b"p"] = SendResult.FULL
    waited_s = 0.0
    while peers.replays.next_due_s() < NEVER:
        peers.serve_all()
        peers.clock.advance(0.5)
        waited_s += 0.5
        assert waited_s < 2 * STALL_S
    assert waited_s > STALL_S


def test_asking_again_begins_again() -> None:
    peers = Peers(3)
    peers.replays.begin(b"p", 2)
    peers.replays.begin(b"p", 1)
    peers.serve_all()
    assert peers.got[b"p"] == [1, 2, END_MARK.number]


def test_no_more_than_a_few_are_served_at_once() -> None:
    peers = Peers(3)
    names = [b"%d" % number for number in range(MAX_REPLAYS)]
    assert all(peers.replays.begin(name, 0) for name in names)
    assert not peers.replays.begin(b"one more", 0)
    assert peers.replays.begin(names[0], 1), "who is being served may ask again"
    peers.serve_all()
    assert set(peers.got) == set(names)
    assert peers.replays.begin(b"one more", 0)
