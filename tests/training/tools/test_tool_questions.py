"""Are the tool questions fair, and does their judge accept right calls and only those?"""

from __future__ import annotations

import json
from random import Random

import pytest

from training.questions import HELD_OUT_KEYS, normalise
from training.tools.dialogue import tool_conversation
from training.tools.questions import (
    FINAL_TOOLS,
    HELD_OUT_TOOL_KEYS,
    HELD_OUT_TOOLS,
    ToolQuestion,
    calls_in,
    is_right_use,
)
from training.tools.values import CITIES

ALL = HELD_OUT_TOOLS + FINAL_TOOLS
TWO_CITIES = next(each for each in HELD_OUT_TOOLS if len(each.calls) == 2)
TOLD = next(each for each in HELD_OUT_TOOLS if each.results)


def written(name: str, arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def right_answer(question: ToolQuestion) -> str:
    return " ".join(question.expected) or "\n".join(written(*call) for call in question.calls)


def test_each_list_has_twenty_questions_and_none_of_them_is_in_another_list() -> None:
    assert len(HELD_OUT_TOOLS) == len(FINAL_TOOLS) == 20
    texts = {(normalise(each.text), each.results) for each in ALL}
    assert len(texts) == 40
    assert not {text for text, _results in texts} & HELD_OUT_KEYS


@pytest.mark.parametrize("question", ALL, ids=lambda each: each.text)
def test_the_right_answer_is_right_and_an_empty_one_wrong(question: ToolQuestion) -> None:
    assert is_right_use(question, right_answer(question))
    assert not is_right_use(question, "")


@pytest.mark.parametrize("question", ALL, ids=lambda each: each.text)
def test_calls_are_of_tools_on_offer_and_their_values_are_in_the_question(question: ToolQuestion) -> None:
    offered = {each["function"]["name"]: each["function"]["parameters"] for each in question.tools}
    for name, arguments in question.calls:
        assert list(arguments) == offered[name]["required"]
        assert all(str(value) in question.text for value in arguments.values())


def test_a_wrong_name_value_or_number_of_calls_is_wrong() -> None:
    right = right_answer(TWO_CITIES)
    for wrong in ("get_time", "Paris"):
        assert not is_right_use(TWO_CITIES, right.replace("get_weather", wrong).replace("Cairo", wrong))
    assert not is_right_use(TWO_CITIES, right.split("\n</tool_call>")[0] + "\n</tool_call>")
    assert not is_right_use(TWO_CITIES, right + "\n" + right)


def test_the_order_of_calls_and_of_arguments_does_not_matter() -> None:
    calls = [written(*call) for call in TWO_CITIES.calls]
    assert is_right_use(TWO_CITIES, "\n".join(reversed(calls)))
    currency = next(each for each in HELD_OUT_TOOLS if each.calls and len(each.calls[0][1]) == 3)
    name, arguments = currency.calls[0]
    assert is_right_use(currency, written(name, dict(reversed(arguments.items()))))


@pytest.mark.parametrize("text", ["<tool_call>\n{", "<tool_call>\n[]\n</tool_call>", "<tool_call>"])
def test_a_call_that_cannot_be_read_is_none(text: str) -> None:
    assert calls_in(text) is None
    assert not is_right_use(TWO_CITIES, text)


def test_an_answer_that_calls_again_is_wrong() -> None:
    assert not is_right_use(TOLD, right_answer(TOLD) + written("get_weather", {}))


def test_a_tool_question_that_is_held_out_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_question() -> str:
        return normalise(tool_conversation(Random(5))[1][0]["content"])

    asked = first_question()
    monkeypatch.setattr("training.tools.dialogue.HELD_OUT_TOOL_KEYS", HELD_OUT_TOOL_KEYS | {asked})
    assert first_question() != asked


def test_no_city_is_listed_twice() -> None:
    assert len(CITIES) == len(set(CITIES))
