from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitserve.engine_core.scheduler.pacing.prefill_cap import PrefillCap, PrefillRoom, cap_prefill

FLAT = 2**30


def cap_of(num_tokens: int, doubling_context: int = FLAT, min_tokens: int = 1) -> PrefillCap:
    # One unit more: a token's own attention is not free, however little it costs.
    return PrefillCap(num_tokens + 1, doubling_context, min_tokens)


def capped(wanted: list[int], room: PrefillRoom, contexts: list[int] | None = None) -> list[int]:
    columns = np.array(wanted, np.int64), np.array(contexts or [0] * len(wanted), np.int64)
    got: list[int] = cap_prefill(room, *columns).tolist()
    return got


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([1, 1, 30], [1, 1, 20]),
        ([30, 1, 30], [20, 1, 0]),
        ([1, 15, 15, 15], [1, 15, 5, 0]),
        ([1, 20], [1, 20]),
        ([1, 0, 0], [1, 0, 0]),
        ([30, 0], [20, 0]),
    ],
)
def test_prefill_is_cut_from_the_end(wanted: list[int], expected: list[int]) -> None:
    assert capped(wanted, PrefillRoom(cap_of(20), 100)) == expected


def test_prefill_stays_within_the_other_bound_too() -> None:
    assert capped([50, 1, 1, 1], PrefillRoom(cap_of(1000), 7)) == [7, 1, 1, 1]


def test_a_token_behind_the_doubling_context_costs_twice() -> None:
    assert PrefillRoom(cap_of(1000, 100_000), 5000).take(5000, 0) == pytest.approx(1000, rel=0.01)
    assert PrefillRoom(cap_of(1000, 100_000), 5000).take(5000, 100_000) == pytest.approx(500, rel=0.01)
    assert PrefillRoom(cap_of(1000, 100_000), 5000).take(5000, 300_000) == pytest.approx(250, rel=0.01)


def test_a_chunk_attends_to_itself() -> None:
    # 1,000 tokens attend to 500 others in the mean, as much context as doubles their cost.
    assert PrefillRoom(PrefillCap(2000, 500, 1), 5000).take(5000, 0) == 1000


def test_context_beyond_the_window_costs_nothing_more() -> None:
    def tokens(context: int) -> int:
        return PrefillRoom(PrefillCap(1000, 1000, 1, max_context=500), 5000).take(5000, context)

    assert tokens(0) > tokens(400) > tokens(500) == tokens(10**6)


def test_rows_pay_for_their_own_contexts() -> None:
    assert capped([30, 1, 90], PrefillRoom(cap_of(90, 10_000), 100), [10_000, 5, 0]) == [30, 1, 30]


def test_newcomers_get_what_is_left() -> None:
    room = PrefillRoom(cap_of(20), 84)
    assert capped([1, 15], room) == [1, 15]
    assert room.is_open
    assert room.take(30, 0) == 5
    assert not room.is_open
    assert room.take(30, 0) == 0


def test_whoever_is_cut_leaves_nothing_to_others() -> None:
    room = PrefillRoom(PrefillCap(100, 1000, 1), 200)
    assert 0 < room.take(300, 5000) < 20, "room for three tokens at a beginning may be left, not for one here"
    assert not room.is_open


def test_a_minimal_chunk_is_given_whatever_it_costs() -> None:
    assert capped([1, 500], PrefillRoom(PrefillCap(0, 1, 16), 100), [9, 10**6]) == [1, 16]
    assert capped([1, 10, 500], PrefillRoom(PrefillCap(0, 1, 16), 100), [9, 50, 10**6]) == [1, 10, 6]
    assert capped([1, 500], PrefillRoom(PrefillCap(0, 1, 16), 5), [9, 10**6]) == [1, 5]


def spent(cap: PrefillCap, chunks: list[int], contexts: list[int]) -> int:
    token = [cap.doubling_context + min(c, cap.max_context) for c in contexts]
    return sum(n * (2 * t + n) for n, t in zip(chunks, token, strict=True))


caps = st.builds(
    PrefillCap,
    num_tokens=st.integers(0, 200),
    doubling_context=st.sampled_from([1, 50, 10**4, FLAT]),
    min_tokens=st.integers(1, 20),
    max_context=st.sampled_from([100, 2**31]),
)
rows = st.lists(st.tuples(st.integers(2, 200), st.integers(0, 5000)), min_size=1, max_size=6)


@settings(max_examples=500)
@given(caps, rows, st.integers(1, 300))
def test_as_much_as_fits_is_given_first_rows_first(
    cap: PrefillCap, rows: list[tuple[int, int]], max_tokens: int
) -> None:
    wanted, contexts = [n for n, _ in rows], [c for _, c in rows]
    got = capped(wanted, PrefillRoom(cap, max_tokens), contexts)
    assert all(0 <= g <= w for g, w in zip(got, wanted, strict=True))
    assert got[0] >= 1
    cut = next((i for i, (g, w) in enumerate(zip(got, wanted, strict=True)) if g < w), len(got))
    assert not any(got[cut + 1 :])
    assert sum(got) <= max_tokens
    room = 2 * cap.doubling_context * cap.num_tokens
    # The last row served gets a token even if only one at a beginning would have fitted.
    served = [n for n in got if n]
    least = [*served[:-1], 0], contexts[: len(served)]
    if served[-1] > 1:
        least = served, contexts[: len(served)]
    assert spent(cap, *least) <= room or sum(got) <= cap.min_tokens
    if cut < len(got) and sum(got) < max_tokens:
        more = [*got[:cut], got[cut] + 1]
        assert spent(cap, more, contexts[: cut + 1]) > room
        assert sum(more) > cap.min_tokens


@settings(max_examples=200)
@given(caps, rows, st.integers(1, 300), st.integers(1, 100))
def test_a_larger_cap_never_gives_less(
    cap: PrefillCap, rows: list[tuple[int, int]], max_tokens: int, more: int
) -> None:
    wanted, contexts = [n for n, _ in rows], [c for _, c in rows]
    larger = cap._replace(num_tokens=cap.num_tokens + more)
    got = capped(wanted, PrefillRoom(cap, max_tokens), contexts)
    assert sum(got) <= sum(capped(wanted, PrefillRoom(larger, max_tokens), contexts))
