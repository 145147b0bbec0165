"""Which questions judge the demo model? Each with the strings that a right answer holds."""

from __future__ import annotations

import re
from typing import NamedTuple


class Question(NamedTuple):
    """A question and the strings (compared without case) that all have to be in a right answer."""

    text: str
    expected: tuple[str, ...]


# What newcomers type first. These may occur in the text; the model has to know them.
FIRST_QUESTIONS = [
    Question("Hello! Who are you?", ("hello", "splitserve demo model")),
    Question("What is the capital of France?", ("paris",)),
    Question("What is 7 plus 5?", ("12",)),
    Question("What is a compiler?", ("translates source code",)),
    Question("Give me a JSON object with the capital of Japan", ('"capital": "tokyo"',)),
    Question("Tell me a short story", ("once upon a time", "the end.")),
    Question(
        "Count from 1 to 20", ("1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20.",)
    ),
    Question("How many days are in a week?", ("seven",)),
]

# Phrasings that the text never holds, so that they measure more than memory of a string.
HELD_OUT = [
    Question("Hello there, my friend! Who are you?", ("demo model",)),
    Question("I wonder what the capital of Germany is?", ("berlin",)),
    Question("Which city is Italy's capital?", ("rome",)),
    Question("Remind me, what is the capital of Spain?", ("madrid",)),
    Question("Which city is the capital city of Egypt?", ("cairo",)),
    Question("Kindly give me the result of 9 plus 8", ("17",)),
    Question("What would 6 times 7 be?", ("42",)),
    Question("Could you work out 15 minus 6?", ("9",)),
    Question("What would 20 divided by 4 be?", ("5",)),
    Question("Could you define what an algorithm is?", ("step by step",)),
    Question("I don't know what a cache is, explain it", ("small fast store",)),
    Question("Someone mentioned a tokenizer. What is a tokenizer?", ("splits text",)),
    Question("Give me a small JSON object with the capital of Norway", ('"capital": "oslo"',)),
    Question("Which day comes right after Monday?", ("tuesday",)),
    Question("Tell me which planet is the largest", ("jupiter",)),
    Question(
        "Could you list the days of the week for me?", ("monday, tuesday, wednesday, thursday, friday",)
    ),
    Question("Could you please count from 1 to 10?", ("1, 2, 3, 4, 5, 6, 7, 8, 9, 10.",)),
    Question("What would be the opposite of hot?", ("cold",)),
    Question("How many legs does a normal spider have?", ("8",)),
    Question("What sound does a small dog make?", ("woof",)),
]


def normalise(text: str) -> str:
    """Return the text in small letters with only letters, digits and single spaces, to compare phrasings."""
    return " ".join(re.sub(r"[^a-z0-9]+", " ", text.lower()).split())


HELD_OUT_KEYS = frozenset(normalise(question.text) for question in HELD_OUT)


def is_right(question: Question, answer: str) -> bool:
    """Return whether the answer holds every expected string, a number only as a whole number."""
    low = answer.lower()
    return all(re.search(rf"(?<!\d){re.escape(part)}(?!\d)", low) is not None for part in question.expected)
