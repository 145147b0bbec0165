"""What waits for the engine: in turns, and never more than it may be."""

from __future__ import annotations

from splitserve.engine_core.errors import ProtocolError
from splitserve.engine_core.ipc.transport import Received
from splitserve.engine_core.server.inbox import Inbox, InboxBound

BOUND = InboxBound(num_messages=3, num_bytes=100)


def message(peer: bytes, frame: bytes | ProtocolError = b"x") -> Received:
    return Received(peer, frame, 7)


def test_peers_are_served_in_turns() -> None:
    inbox = Inbox()
    for peer in (b"a", b"a", b"a", b"b", b"c", b"b"):
        inbox.put(message(peer), is_known=True)
    taken = []
    while (one := inbox.take()) is not None:
        taken.append(one.identity)
    assert taken == [b"a", b"b", b"c", b"a", b"b", b"a"]
    assert not inbox


def test_the_messages_of_a_peer_keep_their_order() -> None:
    inbox = Inbox()
    for frame in (b"1", b"2", b"3"):
        inbox.put(message(b"a", frame), is_known=True)
    assert [one.frame for one in (inbox.take(), inbox.take(), inbox.take()) if one] == [b"1", b"2", b"3"]


def test_who_sends_too_many_messages_loses_them() -> None:
    inbox = Inbox(frontend_bound=BOUND)
    assert [inbox.put(message(b"a"), is_known=True) for _ in range(3)] == [None] * 3
    inbox.put(message(b"b"), is_known=True)
    overrun = inbox.put(message(b"a"), is_known=True)
    assert overrun is not None
    assert overrun.identity == b"a"
    left = inbox.take()
    assert left is not None
    assert left.identity == b"b"
    assert inbox.take() is None


def test_who_sends_too_many_bytes_loses_them() -> None:
    inbox = Inbox(frontend_bound=BOUND)
    assert inbox.put(message(b"a", bytes(100)), is_known=True) is None
    assert inbox.put(message(b"a", b"1"), is_known=True) is not None


def test_a_stranger_may_send_less() -> None:
    inbox = Inbox(stranger_bound=InboxBound(1, 100))
    assert inbox.put(message(b"a"), is_known=False) is None
    assert inbox.put(message(b"a"), is_known=False) is not None


def test_beyond_all_bytes_the_largest_queue_goes() -> None:
    inbox = Inbox(max_bytes=100)
    inbox.put(message(b"large", bytes(60)), is_known=True)
    inbox.put(message(b"small", bytes(30)), is_known=True)
    overrun = inbox.put(message(b"small", bytes(11)), is_known=True)
    assert overrun is not None
    assert overrun.identity == b"large"
    assert inbox.put(message(b"small", bytes(50)), is_known=True) is None


def test_an_error_in_place_of_a_frame_counts_as_a_message() -> None:
    inbox = Inbox(frontend_bound=InboxBound(1, 100))
    inbox.put(message(b"a", ProtocolError("two frames")), is_known=True)
    assert inbox.put(message(b"a", ProtocolError("two frames")), is_known=True) is not None
