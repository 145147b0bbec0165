"""Which connections bring bytes that become no message."""

from __future__ import annotations

import pytest

from splitserve.engine_core.ipc.unread_bytes import UnreadBytes


@pytest.fixture
def unread() -> UnreadBytes:
    return UnreadBytes(max_message_bytes=100, slack_bytes=10, max_bytes=200)


def test_who_brings_more_than_a_message_ends_the_second_time(unread: UnreadBytes) -> None:
    assert unread.check({5: 111}) == []
    assert unread.check({5: 111}) == [5]


def test_a_message_that_is_not_whole_yet_may_be_as_long_as_the_longest(unread: UnreadBytes) -> None:
    assert [unread.check({5: 110}) for _ in range(3)] == [[], [], []]


def test_who_was_heard_of_begins_anew(unread: UnreadBytes) -> None:
    for size in range(100, 1000, 100):
        unread.heard(5)
        assert unread.check({5: size}) == []
    assert unread.check({5: 1010}) == []
    assert unread.check({5: 1011}) == []
    assert unread.check({5: 1012}) == [5]


def test_who_is_heard_of_after_a_suspicion_stays(unread: UnreadBytes) -> None:
    unread.check({5: 111})
    unread.heard(5)
    assert unread.check({5: 500}) == []
    assert unread.check({5: 500}) == []


def test_of_many_that_bring_too_much_together_the_one_with_most_ends(unread: UnreadBytes) -> None:
    received = {5: 70, 6: 80, 7: 70}
    assert unread.check(received) == []
    assert unread.check(received) == [6]


def test_a_descriptor_that_is_used_again_is_another_connection(unread: UnreadBytes) -> None:
    unread.heard(5)
    unread.check({5: 1000})
    unread.check({5: 1111})
    unread.opened(5)
    assert unread.check({5: 1111}) == []
    assert unread.check({5: 1111}) == [5]


def test_a_connection_that_is_gone_is_forgotten(unread: UnreadBytes) -> None:
    unread.check({5: 111})
    unread.check({})
    assert unread.check({5: 111}) == []
