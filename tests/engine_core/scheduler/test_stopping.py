from __future__ import annotations

import numpy as np
import pytest

from splitserve.engine_core.scheduler.running import RunningRows
from splitserve.engine_core.scheduler.stopping import StopRules
from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.engine_core.requests import make_request

EOS = 2


def matches(
    sampling: SequenceSampling, token_id: int, *, index: int = 0, beside: SequenceSampling | None = None
) -> bool:
    """Whether a token at an output index ends a request, with another request running beside it."""
    rules = StopRules(10, [EOS, 9])
    running = RunningRows(2, 4)
    for arrival, params in enumerate([sampling, beside or SequenceSampling(seed=0)]):
        request = make_request([1, 1, 1], arrival=arrival, sampling=params)
        running.admit(arrival, request, step=1, num_cached_tokens=0)
        rules.watch(request)
    positions = np.array([3 + index])
    ends = rules.matches(running, np.array([0]), positions, np.array([token_id], np.int32))
    return ends.tolist() == [0]


@pytest.mark.parametrize(
    ("sampling", "token_id", "expected"),
    [
        (SequenceSampling(), EOS, True),
        (SequenceSampling(), 9, True),
        (SequenceSampling(), 5, False),
        (SequenceSampling(ignore_eos=True), EOS, False),
        (SequenceSampling(stop_token_ids=(5, 6)), 6, True),
        (SequenceSampling(stop_token_ids=(5, 6)), 7, False),
        (SequenceSampling(ignore_eos=True, stop_token_ids=(EOS,)), EOS, True),
    ],
)
def test_eos_and_stop_tokens_end_a_request(sampling: SequenceSampling, token_id: int, expected: bool) -> None:
    assert matches(sampling, token_id) is expected


@pytest.mark.parametrize("token_id", [EOS, 5])
@pytest.mark.parametrize(("index", "expected"), [(0, False), (2, False), (3, True), (4, True)])
def test_nothing_ends_a_request_before_min_tokens(token_id: int, index: int, expected: bool) -> None:
    sampling = SequenceSampling(stop_token_ids=(5,), min_tokens=3)
    assert matches(sampling, token_id, index=index) is expected


def test_stop_tokens_of_others_do_not_count() -> None:
    other = SequenceSampling(stop_token_ids=(5,))
    assert not matches(SequenceSampling(), 5, beside=other)
    assert not matches(SequenceSampling(stop_token_ids=(6,)), 5, beside=other)


def test_watching_is_counted_so_one_leaving_request_does_not_blind_another() -> None:
    rules = StopRules(10, [EOS])
    running = RunningRows(2, 4)
    first = make_request(arrival=0, sampling=SequenceSampling(stop_token_ids=(5, 5)))
    second = make_request(arrival=1, sampling=SequenceSampling(stop_token_ids=(5,)))
    for row, request in enumerate([first, second]):
        running.admit(row, request, step=1, num_cached_tokens=0)
        rules.watch(request)
    rules.unwatch(first)
    tokens, rows, positions = np.array([5], np.int32), np.array([1]), np.array([10])
    assert rules.matches(running, rows, positions, tokens).tolist() == [0]
    rules.unwatch(second)
    assert rules.matches(running, rows, positions, tokens).tolist() == []


@pytest.mark.parametrize(
    ("sampling", "tokens", "expected"),
    [
        (SequenceSampling(), [], (False, None)),
        (SequenceSampling(), [4], (False, None)),
        (SequenceSampling(), [4, EOS], (True, None)),
        (SequenceSampling(stop_token_ids=(4,)), [4], (True, 4)),
        (SequenceSampling(min_tokens=1), [EOS], (False, None)),
        (SequenceSampling(ignore_eos=True), [EOS], (False, None)),
    ],
)
def test_a_resumed_request_may_have_ended_already(
    sampling: SequenceSampling, tokens: list[int], expected: tuple[bool, int | None]
) -> None:
    request = make_request([EOS, EOS], sampling=sampling)
    request.token_ids += np.array(tokens, "<i4").tobytes()
    assert StopRules(10, [EOS]).ends_after(request) == expected


def test_eos_ids_outside_the_vocabulary_are_left_out() -> None:
    rules = StopRules(4, [2, 100, -1])
    assert rules._is_eos.tolist() == [False, False, True, False]
