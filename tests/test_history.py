"""The checker finds each kind of difference, and takes no other cut into events for one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.history import Choice, History, differences


def event(text: str = "", finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"id": "a", "choices": [{"index": index, "text": text, "finish_reason": finish, **more}]}


def whole() -> History:
    history = History()
    history.take(1.0, event("ab", token_ids=[1, 2]))
    history.take(2.0, event("c", "stop", token_ids=[3], stop_reason=7))
    history.take(2.0, {"id": "a", "choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}})
    history.done()
    return history


def test_an_answer_in_other_pieces_is_the_same() -> None:
    history = History()
    for text, token_id in (("a", 1), ("b", 2), ("c", 3)):
        finish: dict[str, Any] = {"finish": "stop", "stop_reason": 7} if text == "c" else {}
        history.take(3.0, event(text, token_ids=[token_id], **finish))
    history.take(9.0, {"id": "a", "choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}})
    history.done()
    assert history.is_whole
    assert differences(history, whole()) == []


def test_chats_and_logprobs_of_both_kinds_are_read() -> None:
    history = History()
    history.take(1.0, {"id": "a", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    content = [{"token": "x", "logprob": -1.5}]
    history.take(2.0, {"id": "a", "choices": [{"index": 0, "delta": {}, "logprobs": {"content": content}}]})
    columns = {"tokens": ["x"], "token_logprobs": [-1.5], "top_logprobs": [None], "text_offset": [0]}
    history.take(3.0, event(index=1, logprobs=columns))
    history.take(3.0, {"id": "a", "choices": [{"index": 2, "message": {"content": "hello"}}]})
    assert history.choices[0].logprobs == content
    assert history.choices[1].logprobs == [("x", -1.5, None, 0)]
    assert history.choices[2].text == "hello"
    assert history.times_s == [2.0, 3.0, 3.0], "an event that brings nothing is no progress"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda h: h.choices[0].token_ids.append(3), "token_ids differs at 3 of 3 (4 came)"),
        (lambda h: setattr(h.choices[0], "text", "aXc"), "text differs at 1"),
        (lambda h: h.choices[0].logprobs.append(1.0), "logprobs differs at 0"),
        (lambda h: setattr(h.choices[0], "finish_reason", "length"), "finish_reason 'length'"),
        (lambda h: setattr(h.choices[0], "stop_reason", None), "stop_reason None"),
        (lambda h: setattr(h, "usage", (4, 4)), "usage (4, 4) instead of (4, 3)"),
        (lambda h: h.choices.pop(0), "choices [] instead of [0]"),
        (lambda h: setattr(h, "num_done", 0), "num_done 0"),
        (lambda h: h.prompt_logprobs.append(None), "prompt_logprobs [None]"),
        (lambda h: h.cut_off("connection lost"), "connection lost"),
        (lambda h: h.done(), "the end twice"),
        (lambda h: h.take(3.0, event("d")), "an event after the end"),
        (lambda h: h.take(3.0, event("d")), "choice 0 went on after its end"),
        (lambda h: h.take(3.0, {"error": {"code": "engine_unavailable"}}), "engine_unavailable"),
        (lambda h: h.take(3.0, {"id": "b", "choices": []}), "the id changed"),
    ],
)
def test_each_difference_is_named(change: Any, word: str) -> None:
    history = whole()
    change(history)
    assert any(word in found for found in differences(history, whole())), differences(history, whole())


def test_gaps_are_those_that_a_fault_may_have_made() -> None:
    history = History()
    for now_s in (1.0, 3.0, 3.5, 4.5):
        history.add(now_s, 0, Choice("x"))
    assert history.longest_gap_s(0.0) == 2.0
    assert history.longest_gap_s(3.2) == 1.0
    assert history.longest_gap_s(5.0) == 0.0
    assert [history.was_open(at_s) for at_s in (0.5, 1.0, 4.0, 4.5)] == [False, True, True, True]
    history.add(5.0, 0, Choice(finish_reason="stop"))
    assert [history.was_open(at_s) for at_s in (4.5, 5.0)] == [True, False]


def test_an_answer_that_was_cut_off_may_be_the_start_of_another() -> None:
    history = History()
    history.take(1.0, event("ab", token_ids=[1, 2]))
    history.cut_off("gone")
    assert history.was_cut_off
    assert history.is_start_of(whole())
    history.choices[0].token_ids.append(9)
    assert not history.is_start_of(whole())
