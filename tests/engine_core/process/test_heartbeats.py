"""The page where loops show that they turn, and the watch that reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.process.heartbeats import (
    BEAT_INTERVAL_S,
    LOOK_INTERVAL_S,
    MAX_GAP_S,
    Heart,
    HeartbeatPage,
    HeartbeatWatch,
    join_heartbeats,
)

LIMIT_S = 2.0


class Watched:
    """A child at slot 1 of three, and the watch over it."""

    def __init__(self) -> None:
        self.page = HeartbeatPage.create(3)
        self.watch = HeartbeatWatch(self.page)
        self.heart = Heart(LIMIT_S, self.page, 1)
        self.now_s = 100.0

    def look_for(self, seconds: float) -> list[int]:
        """Look at the usual intervals; return what the last look found."""
        found: list[int] = []
        for _ in range(round(seconds / LOOK_INTERVAL_S)):
            self.now_s += LOOK_INTERVAL_S
            found = self.watch.look(self.now_s)
        return found


def test_a_loop_that_turns_is_never_late() -> None:
    watched = Watched()
    for _ in range(100):
        watched.heart.beat()
        assert watched.look_for(BEAT_INTERVAL_S) == []


def test_a_loop_that_stands_still_is_late_after_its_limit() -> None:
    watched = Watched()
    watched.heart.beat()
    watched.look_for(LOOK_INTERVAL_S)
    assert watched.look_for(LIMIT_S) == []
    assert watched.look_for(LOOK_INTERVAL_S) == [1]
    watched.heart.beat()
    assert watched.look_for(LOOK_INTERVAL_S) == []


def test_before_its_first_beat_and_after_it_left_nothing_is_expected_of_a_child() -> None:
    watched = Watched()
    assert watched.look_for(1000) == []
    watched.heart.beat()
    watched.heart.leave()
    assert watched.look_for(1000) == []


def test_a_last_beat_after_leaving_changes_nothing() -> None:
    watched = Watched()
    watched.heart.announce(60.0)
    watched.heart.leave()
    watched.heart.beat()
    assert watched.look_for(1000) == []


def test_a_long_phase_has_the_limit_that_was_announced_until_the_next_beat() -> None:
    watched = Watched()
    watched.heart.beat()
    watched.heart.announce(30.0)
    assert watched.look_for(30.0) == []
    assert watched.look_for(2 * LOOK_INTERVAL_S) == [1]
    watched.heart.beat()
    watched.look_for(LOOK_INTERVAL_S)
    assert watched.look_for(LIMIT_S + LOOK_INTERVAL_S) == [1]


def test_a_new_limit_holds_from_the_next_beat_on() -> None:
    watched = Watched()
    watched.heart.beat()
    watched.heart.limit(10.0)
    assert watched.page.limit_s(1) == LIMIT_S
    watched.heart.beat()
    assert watched.page.limit_s(1) == 10.0


def test_what_the_watch_slept_through_is_held_against_nobody() -> None:
    watched = Watched()
    watched.heart.beat()
    watched.look_for(LOOK_INTERVAL_S)
    watched.now_s += 3600
    assert watched.watch.look(watched.now_s) == []
    assert watched.look_for(LIMIT_S - MAX_GAP_S) == []
    assert watched.look_for(LOOK_INTERVAL_S) == [1]


def test_the_first_look_counts_nothing() -> None:
    watched = Watched()
    watched.heart.beat()
    assert watched.watch.look(1e9) == []


def test_a_successor_in_the_same_slot_begins_anew() -> None:
    watched = Watched()
    watched.heart.beat()
    watched.heart.serve(True)
    assert watched.look_for(2 * LIMIT_S) == [1]
    watched.watch.forget(1)
    assert not watched.page.serves(1)
    assert watched.look_for(1000) == []
    Heart(LIMIT_S, watched.page, 1).beat()
    assert watched.look_for(LOOK_INTERVAL_S) == []
    assert watched.look_for(2 * LIMIT_S) == [1]


def test_slots_do_not_touch_each_other() -> None:
    watched = Watched()
    other = Heart(LIMIT_S, watched.page, 2)
    other.beat()
    other.serve(True)
    assert [watched.page.num_beats(slot) for slot in range(3)] == [0, 0, 1]
    assert [watched.page.serves(slot) for slot in range(3)] == [False, False, True]
    other.serve(False)
    assert not watched.page.serves(2)


def test_a_heart_that_nobody_watches_asks_for_no_wake_up() -> None:
    heart = join_heartbeats(None, 0, LIMIT_S)
    heart.beat()
    heart.serve(True)
    assert heart.interval_s == float("inf")
    assert join_heartbeats(HeartbeatPage.create(1).fd, 0, LIMIT_S).interval_s == BEAT_INTERVAL_S


def test_another_process_sees_the_beats_of_a_child_that_inherited_the_page() -> None:
    page = HeartbeatPage.create(2)
    script = (
        "import sys; from splitserve.engine_core.process.heartbeats import join_heartbeats\n"
        "heart = join_heartbeats(int(sys.argv[1]), 1, 7.0); heart.beat(); heart.serve(True)"
    )
    subprocess.run([sys.executable, "-c", script, str(page.fd)], pass_fds=[page.fd], check=True)
    assert (page.num_beats(1), page.limit_s(1), page.serves(1)) == (1, 7.0, True)


def test_a_slot_that_is_not_there_and_a_descriptor_of_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="2 slots, none of number 2"):
        join_heartbeats(HeartbeatPage.create(2).fd, 2, LIMIT_S)
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"no words")
        os.ftruncate(file.fileno(), 13)
        with pytest.raises(ConfigError, match="does not contain the heartbeats"):
            HeartbeatPage(file.fileno())
    with pytest.raises(ConfigError, match="cannot be used"):
        HeartbeatPage(1_000_000)
