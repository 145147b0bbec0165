"""The soak notices what it looks for, and a few seconds of it pass."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.system.soak.__main__ import main
from tests.system.soak.client import Answer, Choice, End
from tests.system.soak.watch import MIB, before_and_after, is_flat

pytestmark = pytest.mark.slow


@pytest.mark.system
def test_a_few_seconds_of_random_load_keep_every_promise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seconds", "4", "--clients", "12", "--catalogue", "16"]) == 0
    told = re.search(r"passed: .* (\d+) whole, \d+ timed_out", capsys.readouterr().out)
    assert told is not None
    assert int(told[1]) > 0


def answer(*token_ids: int, end: End = End.WHOLE, finish_reason: str | None = "length") -> Answer:
    logprobs = [-0.5] * len(token_ids)
    text = "".join(f"{token_id} " for token_id in token_ids)
    return Answer(end, {0: Choice(text, list(token_ids), logprobs, finish_reason)})


def test_a_whole_answer_has_to_be_equal() -> None:
    alone = answer(1, 2, 3)
    assert answer(1, 2, 3).agrees_with(alone)
    assert not answer(1, 2).agrees_with(alone)
    assert not answer(1, 2, 4).agrees_with(alone)
    assert not answer(1, 2, 3, finish_reason="stop").agrees_with(alone)
    other_text = answer(1, 2, 3)
    other_text.choices[0].text = "1 2 4 "
    assert not other_text.agrees_with(alone)
    other_logprobs = answer(1, 2, 3)
    other_logprobs.choices[0].logprobs[1] = -0.500001
    assert not other_logprobs.agrees_with(alone)


@pytest.mark.parametrize("end", [End.TIMED_OUT, End.HUNG_UP])
def test_an_answer_cut_short_has_to_be_the_start_of_it(end: End) -> None:
    alone = answer(1, 2, 3)
    assert answer(1, 2, end=end, finish_reason=None).agrees_with(alone)
    assert Answer(end).agrees_with(alone)
    assert not answer(2, end=end, finish_reason=None).agrees_with(alone)


def test_token_ids_and_usage_are_compared_where_they_came() -> None:
    alone = replace(answer(1, 2, 3), num_tokens=(5, 3))
    without_ids = replace(answer(1, 2, 3), shows_token_ids=False)
    without_ids.choices[0].token_ids = []
    assert without_ids.agrees_with(alone)
    assert not replace(without_ids, shows_token_ids=True).agrees_with(alone)
    assert not replace(without_ids, num_tokens=(5, 2)).agrees_with(alone)


def test_an_error_that_load_does_not_explain_is_a_failure() -> None:
    got = Answer()
    got.take({"error": {"code": "timeout"}})
    assert got.end is End.TIMED_OUT
    with pytest.raises(AssertionError, match="internal_error"):
        got.take({"error": {"code": "internal_error"}})


def test_memory_that_grows_all_the_time_is_a_leak_and_a_start_is_not() -> None:
    leaking = [100 * MIB + i * MIB // 20 for i in range(600)]
    assert not is_flat(*before_and_after(leaking))
    starting = [50 * MIB + min(i, 150) * MIB for i in range(600)]
    assert is_flat(*before_and_after(starting))
    assert before_and_after([7]) == (7, 7)
