"""The smallest value comes first, whatever it was before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from splitserve.engine_core.scheduler.waiting.ranking import Ranking


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(-3, 3)), max_size=60))
def test_the_first_is_that_of_a_sorted_list(events: list[tuple[int, int | None]]) -> None:
    ranking: Ranking[int, int] = Ranking()
    expected: dict[int, int] = {}
    for key, value in events:
        ranking.set(key, value)
        expected.pop(key, None)
        if value is not None:
            expected[key] = value
        found = ranking.first()
        assert len(ranking) == len(expected)
        assert found == min(((value, key) for key, value in expected.items()), default=None)


def test_values_of_before_take_a_bounded_place() -> None:
    ranking: Ranking[int, int] = Ranking()
    for value in range(10_000):
        ranking.set(value % 10, -value)
    assert len(ranking._heap) <= 2 * 10 + 64
