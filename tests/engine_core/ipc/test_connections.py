"""Which connections stay and which end, event by event."""

from __future__ import annotations

from splitserve.engine_core.ipc.connections import STUCK_S, SWEEP_S, ConnectionTable

PATIENCE_S = 30.0


def everybody(identity: bytes) -> bool:
    return True


def nobody(identity: bytes) -> bool:
    return False


def test_the_oldest_silent_connection_ends_for_a_newcomer() -> None:
    table = ConnectionTable(2, PATIENCE_S)
    assert table.opened(11, 0.0) is None
    assert table.opened(12, 1.0) is None
    assert table.opened(13, 2.0) == 11
    assert table.is_ending(11)
    assert table.num_refused == 1


def test_known_peers_are_not_ended_for_a_newcomer() -> None:
    table = ConnectionTable(2, PATIENCE_S)
    for descriptor in (11, 12):
        table.opened(descriptor, 0.0)
        table.greet(descriptor, b"%d" % descriptor, 0.0)
    assert table.opened(13, 1.0) == 13


def test_where_nobody_introduces_himself_the_newcomer_is_refused() -> None:
    table = ConnectionTable(1)
    table.opened(11, 0.0)
    assert table.opened(12, 1.0) == 12
    assert table.sweep(1e9, nobody) == []


def test_a_connection_that_ended_gives_its_place_back() -> None:
    table = ConnectionTable(1, PATIENCE_S)
    table.opened(11, 0.0)
    table.closed(11)
    assert len(table) == 0
    assert table.opened(11, 1.0) is None


def test_a_peer_that_stays_unknown_ends_after_its_patience() -> None:
    table = ConnectionTable(9, PATIENCE_S)
    table.opened(11, 0.0)
    table.opened(12, 0.0)
    table.greet(12, b"known", 0.0)
    assert table.sweep(PATIENCE_S - 1, everybody) == []
    assert table.sweep(PATIENCE_S + SWEEP_S, everybody) == [11]
    assert table.sweep(PATIENCE_S + 3 * SWEEP_S, everybody) == [], "told once"


def test_a_peer_that_was_dropped_has_its_patience_again() -> None:
    table = ConnectionTable(9, PATIENCE_S)
    table.opened(11, 0.0)
    table.greet(11, b"one", 0.0)
    assert table.sweep(100.0, nobody) == []
    assert table.sweep(100.0 + PATIENCE_S, nobody) == [11]


def test_an_identity_that_moves_ends_the_connection_that_had_it() -> None:
    table = ConnectionTable(9, PATIENCE_S)
    table.opened(11, 0.0)
    table.opened(12, 0.0)
    assert table.greet(11, b"one", 0.0) is None
    assert table.greet(11, b"one", 0.0) is None
    assert table.greet(12, b"one", 0.0) == 11
    assert table.is_ending(11)


def test_only_many_connections_that_do_not_end_are_a_reason_to_bind_anew() -> None:
    table = ConnectionTable(4, PATIENCE_S)
    for descriptor in (11, 12):
        table.opened(descriptor, 0.0)
    table.end(11, 0.0)
    assert not table.is_stuck(STUCK_S), "one of four is left alone"
    table.end(12, 0.0)
    assert not table.is_stuck(STUCK_S / 2), "they may still be ending"
    assert table.is_stuck(STUCK_S)
    table.clear()
    assert not table.is_stuck(STUCK_S)


def test_nothing_is_due_without_connections() -> None:
    table = ConnectionTable(4, PATIENCE_S)
    assert table.next_due_s() == float("inf")
    table.opened(11, 0.0)
    assert table.next_due_s() == SWEEP_S
    table.closed(11)
    table.sweep(SWEEP_S, everybody)
    assert table.next_due_s() == float("inf")
