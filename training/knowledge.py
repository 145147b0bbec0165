"""Which questions about words, things and the calendar does the demo model answer?"""

from __future__ import annotations

from random import Random

from training import facts
from training.definitions import DEFINITIONS
from training.phrasing import Exchange, capital_first, define, vary, what_is
from training.plain_facts import PLAIN


def definition(rng: Random) -> list[Exchange]:
    """What a word means."""
    term, meaning = rng.choice(list(DEFINITIONS.items()))
    return [Exchange(vary(define(term, rng), rng), meaning)]


def plain(rng: Random) -> list[Exchange]:
    """Single facts."""
    questions, answer = rng.choice(PLAIN)
    question = rng.choice(questions)
    if question.startswith("How many") and rng.random() < 0.15:
        question = (
            rng.choice(["Do you know how many", "Tell me how many", "Can you tell me how many"])
            + question[8:]
        )
    return [Exchange(vary(question, rng), answer)]


def table(rng: Random) -> list[Exchange]:
    """Opposites, sounds, young animals, colours, legs."""
    kind = rng.randrange(5)
    if kind == 0:
        pair = rng.choice(facts.OPPOSITES)
        word, other = pair if rng.random() < 0.6 else pair[::-1]
        mark = rng.choice(["{}", "{}", '"{}"'])
        asked = mark.format(word)
        question = rng.choice(
            [
                what_is(f"the opposite of {asked}", rng),
                f"Which word is the opposite of {asked}?",
                f"Opposite of {asked}?",
                f"What does the opposite of {asked} mean?",
            ]
        )
        return [Exchange(vary(question, rng), f"The opposite of {word} is {other}.")]
    if kind == 1:
        animal, sound = rng.choice(list(facts.SOUNDS.items()))
        question = rng.choice(
            [
                "What sound does a {} make?",
                "What does a {} say?",
                "Which sound does a {} make?",
                "How does a {} sound?",
                "What noise does a {} make?",
            ]
        )
        return [
            Exchange(
                vary(question.format(animal), rng), f"A {animal} says {sound}.".replace("A owl", "An owl")
            )
        ]
    if kind == 2:
        animal, young = rng.choice(list(facts.BABIES.items()))
        question = rng.choice(
            [
                "What is a baby {} called?",
                "What do you call a baby {}?",
                "What is a young {} called?",
                "What do you call a young {}?",
                "What is the baby of a {} called?",
            ]
        )
        return [Exchange(vary(question.format(animal), rng), f"A baby {animal} is called a {young}.")]
    if kind == 3:
        thing, colour = rng.choice(list(facts.COLOURS.items()))
        question = rng.choice(
            [
                "What colour is {}?",
                "What color is {}?",
                "Which colour does {} have?",
                "Tell me the colour of {}.",
                "What is the colour of {}?",
            ]
        )
        return [Exchange(vary(question.format(thing), rng), f"{capital_first(thing)} is {colour}.")]
    thing, legs = rng.choice(list(facts.LEGS.items()))
    question = rng.choice(
        [
            "How many legs does {} have?",
            "How many legs has {}?",
            "How many legs are on {}?",
            "Tell me how many legs {} has.",
        ]
    )
    return [Exchange(vary(question.format(thing), rng), f"{capital_first(thing)} has {legs or 'no'} legs.")]


def calendar(rng: Random) -> list[Exchange]:
    """What comes before and after a day, a month or a number."""
    names = rng.choice([facts.DAYS, facts.MONTHS, facts.MONTHS])
    unit = "day" if names is facts.DAYS else "month"
    i = rng.randrange(len(names))
    step, word = rng.choice([(1, "after"), (-1, "before")])
    other = names[(i + step) % len(names)]
    forms = [
        "What {u} comes {w} {n}?",
        "Which {u} comes {w} {n}?",
        "What comes {w} {n}?",
        "Which {u} is {w} {n}?",
        "What {u} is {w} {n}?",
        "Tell me the {u} {w} {n}.",
    ]
    if word == "after":
        forms += ["Which {u} follows {n}?", "What follows {n}?"]
    question = rng.choice(forms)
    return [
        Exchange(vary(question.format(u=unit, w=word, n=names[i]), rng), f"{other} comes {word} {names[i]}.")
    ]
