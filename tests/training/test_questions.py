"""Does the judge accept right answers and only those?"""

from __future__ import annotations

import pytest

from training.questions import FIRST_QUESTIONS, HELD_OUT, Question, is_right, normalise


def test_case_and_punctuation_do_not_make_another_question() -> None:
    assert normalise("What's  the CAPITAL?") == normalise("what s the capital")


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("7 plus 5 is 12.", True),
        ("It is 12", True),
        ("7 plus 5 is 112.", False),
        ("7 plus 5 is 120.", False),
        ("", False),
    ],
)
def test_a_number_counts_only_as_a_whole_number(answer: str, right: bool) -> None:
    assert is_right(Question("What is 7 plus 5?", ("12",)), answer) is right


def test_every_expected_string_is_needed() -> None:
    question = Question("Hello! Who are you?", ("hello", "demo model"))
    assert is_right(question, "Hello! I am the demo model.")
    assert not is_right(question, "I am the demo model.")


def test_expected_strings_are_in_small_letters_and_there_are_twenty_held_out_questions() -> None:
    assert len(HELD_OUT) == 20
    for question in FIRST_QUESTIONS + HELD_OUT:
        assert all(part == part.lower() for part in question.expected)
