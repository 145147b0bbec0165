"""Do the phrasings keep the question while its form varies?"""

from __future__ import annotations

from random import Random

import pytest

from training.phrasing import define, lower_first, plural, slip, vary, what_is


@pytest.mark.parametrize(
    ("text", "expected"),
    [("What is it?", "what is it?"), ("I want it", "I want it"), ("JSON please", "JSON please"), ("", "")],
)
def test_only_ordinary_first_words_lose_their_capital(text: str, expected: str) -> None:
    assert lower_first(text) == expected


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        ("a compiler", "compilers"),
        ("a library", "libraries"),
        ("a fish", "fishes"),
        ("a process", "processes"),
    ],
)
def test_plurals_follow_the_regular_rules(term: str, expected: str) -> None:
    assert plural(term) == expected


def test_the_thing_asked_for_stays_in_every_phrasing() -> None:
    rng = Random(0)
    for _ in range(300):
        assert "capital of france" in what_is("the capital of France", rng).lower()
        assert "compiler" in define("a compiler", rng).lower()


def test_a_slip_changes_at_most_a_letter_or_two() -> None:
    rng = Random(0)
    text = "What is the capital of France?"
    for _ in range(100):
        assert abs(len(slip(text, rng)) - len(text)) <= 1


def test_short_texts_have_no_slips() -> None:
    assert slip("7 + 5", Random(0)) == "7 + 5"


def test_one_question_takes_many_forms() -> None:
    rng = Random(0)
    assert len({vary("What is a cache?", rng) for _ in range(300)}) > 30
