"""Is the text deterministic, consistent in its facts, and free of the questions that judge the model?"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from random import Random

import pytest

from training import facts, numbers, places, unknown
from training.corpus import TOPICS, Conversation, conversations
from training.definitions import DEFINITIONS
from training.json_answers import extraction, json_answer
from training.questions import FIRST_QUESTIONS, HELD_OUT, HELD_OUT_KEYS, normalise
from training.tools.dialogue import CANNOT, tool_conversation
from training.tools.questions import HELD_OUT_TOOL_KEYS
from training.trials import arguments_of
from training.wide_questions import wide_questions

SAMPLE = 3000


@pytest.fixture(scope="module")
def sample() -> list[Conversation]:
    """Return the first conversations of the seed that the model was trained with."""
    return list(conversations(7, SAMPLE))


def test_the_same_seed_makes_the_same_text(sample: list[Conversation]) -> None:
    assert [c.messages for c in conversations(7, 200)] == [c.messages for c in sample[:200]]


def test_another_seed_makes_other_text(sample: list[Conversation]) -> None:
    assert [c.messages for c in conversations(8, 200)] != [c.messages for c in sample[:200]]


def test_held_out_questions_never_occur(sample: list[Conversation]) -> None:
    turns = {normalise(turn) for conversation in sample for turn in conversation.user_turns()}
    assert not turns & (HELD_OUT_KEYS | HELD_OUT_TOOL_KEYS)


def test_a_topic_that_draws_a_held_out_question_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {normalise(c.user_turns()[0]) for c in conversations(3, 50)}
    monkeypatch.setattr("training.corpus.HELD_OUT_KEYS", asked)
    plain = [c for c in conversations(3, 50) if not c.tools]
    assert plain
    assert not {normalise(turn) for c in plain for turn in c.user_turns()} & asked


def test_roles_alternate_and_end_with_the_assistant(sample: list[Conversation]) -> None:
    for conversation in sample:
        roles = [
            message["role"] for message in conversation.messages if message["role"] not in ("system", "tool")
        ]
        assert roles[0] == "user"
        assert roles[-1] == "assistant"
        assert all(a != b or a == "assistant" for a, b in pairwise(roles))


def test_every_topic_gives_questions_with_answers() -> None:
    rng = Random(1)
    for topic, weight in TOPICS:
        assert weight > 0
        for _ in range(50):
            assert all(turn.question.strip() and turn.answer.strip() for turn in topic(rng))


def test_capitals_are_answered_as_the_table_says() -> None:
    rng = Random(2)
    for _ in range(500):
        for turn in places.capital(rng):
            match = re.fullmatch(r"The capital of (.+) is (.+)\.", turn.answer)
            if match:
                assert facts.COUNTRIES[match[1]][0] == match[2]


def test_every_country_has_its_own_capital_except_england_and_the_united_kingdom() -> None:
    cities = [city for city, _ in facts.COUNTRIES.values()]
    assert {city for city in cities if cities.count(city) > 1} == {"London"}


def test_sums_are_right() -> None:
    rng = Random(3)
    signs = {"plus": "+", "minus": "-", "times": "*", "divided by": "//"}
    for _ in range(1000):
        for turn in numbers.arithmetic(rng):
            match = re.fullmatch(r"(\d+) (plus|minus|times|divided by) (\d+) is (-?\d+)\.", turn.answer)
            if match:
                left, right, result = int(match[1]), int(match[3]), int(match[4])
                expected = {
                    "+": left + right,
                    "-": left - right,
                    "*": left * right,
                    "//": left // max(right, 1),
                }
                assert result == expected[signs[match[2]]]


def test_opposites_hold_both_ways() -> None:
    words = [word for pair in facts.OPPOSITES for word in pair]
    assert len(words) == len(set(words))


def test_definitions_start_with_their_term() -> None:
    for term, meaning in DEFINITIONS.items():
        assert meaning.lower().startswith(term.lower() + " is ")
        assert meaning.endswith(".")


def test_what_the_model_defines_is_not_also_refused() -> None:
    refused = {normalise(thing) for thing in unknown.THINGS}
    assert not refused & {normalise(term.split(" ", 1)[-1]) for term in DEFINITIONS}


def test_json_answers_parse() -> None:
    rng = Random(4)
    for _ in range(300):
        for topic in (json_answer, extraction):
            assert isinstance(json.loads(topic(rng)[0].answer), dict)


def test_tool_calls_name_a_tool_on_offer_with_its_own_parameters() -> None:
    rng = Random(5)
    for i in range(300):
        tools, messages = tool_conversation(rng, thinks=i % 3 == 0)
        offered = {tool["function"]["name"]: tool["function"]["parameters"]["properties"] for tool in tools}
        assert len(offered) == len(tools)
        if "tool_calls" not in messages[1]:
            assert messages[1]["content"] == CANNOT
            continue
        for call in messages[1]["tool_calls"]:
            assert list(arguments_of(call["function"])) == list(offered[call["function"]["name"]])


def test_the_wide_list_is_large_fixed_and_avoids_the_held_out_questions() -> None:
    first, second = wide_questions(), wide_questions()
    assert first == second
    texts = [question.text for group in first.values() for question in group]
    assert len(texts) + len(FIRST_QUESTIONS) + len(HELD_OUT) > 200
    assert not {normalise(text) for text in texts} & HELD_OUT_KEYS
