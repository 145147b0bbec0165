"""Who is held to have caused a death: nobody at first, then whoever was there both times."""

from __future__ import annotations

import pytest

from splitserve.engine_core.suspects import MAX_SUSPECTS, Death, Suspects


def test_one_death_accuses_nobody() -> None:
    verdict = Suspects[str]().died(["a", "b"])
    assert (verdict.unsafe, verdict.suspects) == ([], [])


def test_the_only_one_present_at_two_deaths_is_unsafe_and_forgotten() -> None:
    suspects = Suspects[str]()
    suspects.died(["a", "b"])
    assert suspects.died(["b", "c"]).unsafe == ["b"]
    assert "b" not in suspects
    assert "c" in suspects


@pytest.mark.parametrize("num_common", [2, MAX_SUSPECTS])
def test_a_few_in_common_are_tried_one_at_a_time_until_one_is_found(num_common: int) -> None:
    suspects = Suspects[int]()
    common = list(range(num_common))
    suspects.died([*common, 100])
    verdict = suspects.died([*common, 200])
    assert (verdict.unsafe, verdict.suspects) == ([], common)
    # The first gets further and is cleared; the second, alone, kills again.
    suspects.forget([0])
    assert 0 not in suspects
    assert suspects.died([1, 0]).unsafe == [1]


def test_many_in_common_point_to_a_cause_elsewhere() -> None:
    suspects = Suspects[int]()
    common = range(MAX_SUSPECTS + 1)
    suspects.died(common)
    verdict = suspects.died(common)
    assert (verdict.unsafe, verdict.suspects) == ([], [])


def test_a_death_that_was_none_is_taken_back_and_no_other() -> None:
    suspects = Suspects[str]()
    none = Death(is_certain=False)
    suspects.died(["a"])
    suspects.died(["a", "b"], none)
    suspects.take_back(none)
    assert suspects.num_deaths("a") == 1
    assert "b" not in suspects
    assert suspects.died(["a"]).unsafe == ["a"]


def test_nobody_is_unsafe_while_a_death_is_uncertain() -> None:
    suspects = Suspects[str]()
    deaths = [Death(is_certain=False), Death(is_certain=False)]
    suspects.died(["a"], deaths[0])
    verdict = suspects.died(["a", "b"], deaths[1])
    assert (verdict.unsafe, verdict.suspects, verdict.doubtful) == ([], [], ["a"])
    deaths[1].is_certain = True
    assert not suspects.is_proven("a")
    deaths[0].is_certain = True
    assert suspects.is_proven("a")
    assert not suspects.is_proven("b"), "one death proves nothing"


def test_requests_that_ended_are_forgotten() -> None:
    suspects = Suspects[str]()
    suspects.died(["a", "b"])
    suspects.forget(["a", "unknown"])
    assert "a" not in suspects
    assert suspects.died(["a", "b"]).unsafe == ["b"]


def test_one_that_was_never_seen_to_run_is_a_suspect_before_it_is_unsafe() -> None:
    suspects = Suspects[str]()
    suspects.died(["a", "b"], unseen=["a"])
    verdict = suspects.died(["a", "c"], unseen=["a"])
    assert (verdict.unsafe, verdict.suspects) == ([], ["a"])
    assert suspects.died(["a"], unseen=["a"]).unsafe == ["a"]
