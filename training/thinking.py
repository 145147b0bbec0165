"""What does the demo model think when it is told to? Sums column by column, else what is wanted."""

from __future__ import annotations

from random import Random

from training import knowledge, numbers, places, smalltalk, telling, unknown
from training.json_answers import extraction, json_answer
from training.phrasing import Exchange, vary


def columns(left: int, operation: str, right: int) -> str:
    """Return how a sum or difference of numbers below 100 is done by hand; left is not below right."""
    (tens, ones), (other_tens, other_ones) = divmod(left, 10), divmod(right, 10)
    if operation == "plus":
        total = ones + other_ones
        carried = f" plus {total // 10}" if total > 9 else ""
        sum_of_tens = tens + other_tens + total // 10
        return (
            f"Ones: {ones} plus {other_ones} is {total}. "
            f"Tens: {tens} plus {other_tens}{carried} is {sum_of_tens}. So it is {left + right}."
        )
    borrowed = ones < other_ones
    shown = ones + 10 if borrowed else ones
    lent = " minus 1" if borrowed else ""
    return (
        f"Ones: {shown} minus {other_ones} is {shown - other_ones}. "
        f"Tens: {tens} minus {other_tens}{lent} is {tens - other_tens - borrowed}. So it is {left - right}."
    )


def long_sum(rng: Random) -> tuple[Exchange, str]:
    """Return a sum below 100 and how it is done."""
    operation = rng.choice(["plus", "minus"])
    left, right = rng.randint(1, 99), rng.randint(1, 99)
    if operation == "minus":
        left, right = max(left, right), min(left, right)
    question = vary(numbers.phrase(left, operation, right, rng), rng)
    return Exchange(question, numbers.state(left, operation, right)), columns(left, operation, right)


THOUGHTS = [
    (places.capital, "The user asks about a capital. I know capitals."),
    (knowledge.definition, "The user asks what a word means. I say it in one sentence."),
    (knowledge.plain, "The user asks for a fact. I say it in one sentence."),
    (knowledge.table, "The user asks for a fact. I say it in one sentence."),
    (smalltalk.smalltalk, "The user talks to me. I answer kindly."),
    (telling.story, "The user wants a story. I tell a short one."),
    (unknown.unknown, "I was not taught this. I say that I do not know."),
    (json_answer, "The user wants JSON. I write only JSON."),
    (extraction, "The user wants JSON. I take the values from the text."),
]


def thoughtful(rng: Random) -> tuple[Exchange, str]:
    """Return one exchange and what is thought before its answer."""
    if rng.random() < 0.5:
        return long_sum(rng)
    topic, thought = rng.choice(THOUGHTS)
    return topic(rng)[0], thought
