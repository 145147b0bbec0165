"""Leases, bounded outboxes and the bound on frontends, with a scripted send."""

from __future__ import annotations

import pytest

from splitserve.engine_core.errors import OverloadedError
from splitserve.engine_core.ipc.transport import SendResult
from splitserve.engine_core.server.frontends import FrontendTable

A, B, C = b"a", b"b", b"c"


class Wire:
    """A send that does as told, per identity."""

    def __init__(self) -> None:
        self.results: dict[bytes, SendResult] = {}
        self.sent: list[tuple[bytes, bytes]] = []

    def send(self, identity: bytes, frame: bytes) -> SendResult:
        result = self.results.get(identity, SendResult.SENT)
        if result is SendResult.SENT:
            self.sent.append((identity, frame))
        return result


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def table(wire: Wire) -> FrontendTable:
    return FrontendTable(wire.send, 10.0, max_frontends=3, credit_bytes=100)


def test_hello_takes_in_once_and_renews_then(table: FrontendTable) -> None:
    assert table.hello(A, "first", 0.0) is False
    assert table.hello(A, "renamed", 1.0) is True
    assert (len(table), table.name(A)) == (1, "renamed")


def test_an_unknown_peer_has_no_lease_to_renew(table: FrontendTable) -> None:
    assert table.touch(A, 0.0) is False
    assert len(table) == 0
    assert table.name(b"\x01\xff") == "01ff"


def test_there_are_never_more_than_allowed(table: FrontendTable) -> None:
    for identity in (A, B, C):
        table.hello(identity, "x", 0.0)
    with pytest.raises(OverloadedError, match="3 frontends"):
        table.hello(b"d", "x", 0.0)
    assert table.hello(A, "x", 1.0), "those who are in may still renew"
    table.drop(B)
    assert table.hello(b"d", "x", 2.0) is False


def test_leases_expire_in_order_of_silence(table: FrontendTable) -> None:
    table.hello(A, "a", 0.0)
    table.hello(B, "b", 1.0)
    assert table.next_expiry_s() == 10.0
    table.touch(A, 5.0)
    assert table.next_expiry_s() == 11.0
    assert table.expired(11.0) == []
    assert table.expired(11.1) == []
    assert table.next_expiry_s() == 11.1 + 2.5
    assert table.expired(13.7) == [B]
    assert table.expired(15.1) == [B]
    assert table.expired(17.7) == [B, A]
    table.drop(B)
    table.drop(A)
    assert table.next_expiry_s() is None


def test_an_engine_that_stood_still_hears_the_pings_that_wait_before_it_ends_a_lease(
    table: FrontendTable,
) -> None:
    table.hello(A, "alive", 0.0)
    table.hello(B, "hung", 0.0)
    assert table.expired(1000.0) == []
    table.touch(A, 1000.1)
    assert table.next_expiry_s() == 1000.0 + 2.5
    assert table.expired(1002.6) == [B]
    table.drop(B)
    assert table.next_expiry_s() == 1010.1


def test_leases_are_looked_at_when_the_first_of_several_is_due(table: FrontendTable) -> None:
    table.hello(A, "a", 0.0)
    table.hello(B, "b", 1.0)
    assert table.expired(10.5) == []
    # B runs out before the time that A has is over.
    assert table.next_expiry_s() == 11.0


def test_a_frame_goes_straight_through_when_there_is_room(table: FrontendTable, wire: Wire) -> None:
    table.hello(A, "a", 0.0)
    assert table.post(A, b"one") is SendResult.SENT
    assert wire.sent == [(A, b"one")]
    assert not table.has_stalled


def test_frames_keep_their_order_behind_one_that_waits(table: FrontendTable, wire: Wire) -> None:
    table.hello(A, "a", 0.0)
    wire.results[A] = SendResult.FULL
    assert table.post(A, b"one") is SendResult.SENT
    wire.results[A] = SendResult.SENT
    assert table.post(A, b"two") is SendResult.SENT
    assert wire.sent == [], "the second may not overtake the first"
    assert table.flush() == []
    assert wire.sent == [(A, b"one"), (A, b"two")]
    assert not table.has_stalled


def test_unread_bytes_beyond_the_credit_are_told(table: FrontendTable, wire: Wire) -> None:
    table.hello(A, "a", 0.0)
    wire.results[A] = SendResult.FULL
    assert table.post(A, bytes(60)) is SendResult.SENT
    assert table.post(A, bytes(40)) is SendResult.SENT
    assert table.post(A, b"x") is SendResult.FULL


def test_what_was_sent_is_credit_again(table: FrontendTable, wire: Wire) -> None:
    table.hello(A, "a", 0.0)
    wire.results[A] = SendResult.FULL
    table.post(A, bytes(100))
    wire.results[A] = SendResult.SENT
    table.flush()
    wire.results[A] = SendResult.FULL
    assert table.post(A, bytes(100)) is SendResult.SENT


def test_a_slow_frontend_costs_the_others_nothing(table: FrontendTable, wire: Wire) -> None:
    for identity in (A, B):
        table.hello(identity, "x", 0.0)
    wire.results[A] = SendResult.FULL
    for number in range(5):
        table.post(A, b"%d" % number)
        table.post(B, b"%d" % number)
    assert [frame for identity, frame in wire.sent if identity == B] == [b"%d" % n for n in range(5)]


def test_a_peer_that_is_gone_is_told_at_once_and_while_flushing(table: FrontendTable, wire: Wire) -> None:
    for identity in (A, B):
        table.hello(identity, "x", 0.0)
    wire.results[A] = SendResult.GONE
    assert table.post(A, b"x") is SendResult.GONE
    wire.results[B] = SendResult.FULL
    table.post(B, b"x")
    wire.results[B] = SendResult.GONE
    assert table.flush() == [B]


def test_a_dropped_frontend_leaves_nothing(table: FrontendTable, wire: Wire) -> None:
    table.hello(A, "a", 0.0)
    wire.results[A] = SendResult.FULL
    table.post(A, b"x")
    table.drop(A)
    table.drop(A)
    assert (len(table), table.has_stalled, table.flush(), list(table)) == (0, False, [], [])
    assert table.post(A, b"x") is SendResult.GONE


def test_frontends_may_be_dropped_while_all_are_visited(table: FrontendTable) -> None:
    for identity in (A, B, C):
        table.hello(identity, "x", 0.0)
    for identity in table:
        table.drop(identity)
    assert len(table) == 0
