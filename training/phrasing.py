"""In how many ways can a user put one question? Templates, politeness, case, punctuation and small slips."""

from __future__ import annotations

from random import Random
from typing import NamedTuple


class Exchange(NamedTuple):
    """One user turn and the assistant's answer to it."""

    question: str
    answer: str


WHAT_IS = [
    "What is {}?",
    "What is {}?",
    "What's {}?",
    "Tell me {}.",
    "Can you tell me {}?",
    "Do you know {}?",
    "Could you tell me what {} is?",
    "Tell me what {} is.",
    "I want to know {}.",
    "Please tell me {}.",
    "Say what {} is.",
    "I would like to know what {} is.",
    "{}?",
    "Do you know what {} is?",
    "Give me {}.",
]
DEFINE = [
    "What is {}?",
    "What is {}?",
    "What's {}?",
    "Define {}.",
    "Explain {}.",
    "Explain what {} is.",
    "What does {} mean?",
    "Tell me what {} is.",
    "Can you explain {}?",
    "Do you know what {} is?",
    "Give me a definition of {}.",
    "How would you define {}?",
    "Tell me about {}.",
    "What do you know about {}?",
    "What exactly is {}?",
    "In one sentence, what is {}?",
    "Can you tell me what {} is?",
    "Could you explain what {} is?",
    "What are {}?",
    "I want to know what {} is.",
    "{}?",
    "Describe {}.",
]
PREFIXES = [
    "Please, ",
    "Hey, ",
    "Hi! ",
    "Hello! ",
    "Quick question: ",
    "I have a question. ",
    "Tell me, ",
    "So, ",
    "Okay, ",
    "Question: ",
    "Well, ",
    "And ",
    "Now, ",
    "Hi, ",
    "Hello, ",
]
SUFFIXES = [
    " Please.",
    " Thanks!",
    " Thank you.",
    " I want to know.",
    " Answer briefly.",
    " Do you know?",
    " Answer in one sentence.",
    " I forgot.",
]
SLIP_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def lower_first(text: str) -> str:
    """Return text with a small first letter, unless its first word is an acronym or a lone letter."""
    word = text.split(" ", 1)[0]
    return text if word.isupper() else text[:1].lower() + text[1:]


def what_is(thing: str, rng: Random) -> str:
    """Return a question for a noun phrase such as "the capital of France"."""
    return capital_first(rng.choice(WHAT_IS).format(thing))


def define(term: str, rng: Random) -> str:
    """Return a question for the meaning of a term such as "a compiler"."""
    template = rng.choice(DEFINE)
    if template.startswith("What are"):
        return template.format(plural(term)) if term.startswith(("a ", "an ")) else f"What is {term}?"
    if rng.random() < 0.1 and term.startswith(("a ", "an ")):
        term = term.split(" ", 1)[1]
    return capital_first(template.format(term))


def plural(term: str) -> str:
    """Return the plural of a term with its article, by the regular rules."""
    noun = term.split(" ", 1)[1]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "sh", "ch", "x")) else "s")


def capital_first(text: str) -> str:
    """Return text with a capital first letter."""
    return text[:1].upper() + text[1:]


def slip(text: str, rng: Random) -> str:
    """Return text with one small typing slip: a letter lost, doubled, swapped with the next, or replaced."""
    letters = [i for i, char in enumerate(text[:-1]) if char.isalpha()]
    if len(letters) < 8:
        return text
    i = rng.choice(letters)
    return rng.choice(
        [
            text[:i] + text[i + 1 :],
            text[:i] + text[i] + text[i:],
            text[:i] + text[i + 1] + text[i] + text[i + 2 :],
            text[:i] + rng.choice(SLIP_LETTERS) + text[i + 1 :],
        ]
    )


def vary(question: str, rng: Random) -> str:
    """Return the question as some user might type it."""
    if rng.random() < 0.12:
        question = rng.choice(PREFIXES) + lower_first(question)
    if rng.random() < 0.08:
        question += rng.choice(SUFFIXES)
    if rng.random() < 0.25:
        question = question.rstrip("?.!")
    if rng.random() < 0.2:
        question = question.lower()
    elif rng.random() < 0.01:
        question = question.upper()
    if rng.random() < 0.03:
        question = slip(question, rng)
    return question
