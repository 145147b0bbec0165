"""Which wider list of questions gives the score in the model card? Drawn over every table by a seed."""

from __future__ import annotations

from random import Random

from training import facts
from training.definitions import DEFINITIONS
from training.long_texts import LISTS
from training.numbers import solve
from training.plain_facts import PLAIN
from training.questions import HELD_OUT_KEYS, Question, normalise
from training.smalltalk import HELP, WHO
from training.unknown import CANNOT

SEED = 20261120
SORRY = "do not know"


def wide_questions() -> dict[str, list[Question]]:
    """Return the questions by group; the draw is seeded, so every run asks the same ones."""
    rng = Random(SEED)
    groups = {
        "capitals": [
            Question(f"Could you say which city is the capital of {country}?", (city,))
            for country, (city, _) in rng.sample(list(facts.COUNTRIES.items()), 25)
        ],
        "continents": [
            Question(f"On which continent does {country} lie?", (where,))
            for country, (_, where) in rng.sample(list(facts.COUNTRIES.items()), 10)
        ],
        "definitions": [
            Question(f"Would you explain what {term} is?", (meaning,))
            for term, meaning in rng.sample(list(DEFINITIONS.items()), 30)
        ],
        "plain facts": [
            Question("I want to ask: " + questions[0], (answer,))
            for questions, answer in rng.sample(PLAIN, 20)
        ],
        "sums up to 20": sums(rng, 20, 25),
        "sums up to 50": sums(rng, 50, 15),
        "tables": tables(rng),
        "lists": [
            Question(f"Would you list {name}?", (", ".join(items[:-1]),))
            for name, (_, items) in LISTS.items()
        ],
        "counting": counting([(1, 5), (1, 12), (1, 30), (3, 15), (1, 50)]),
        "JSON": [
            Question(f"Give me the capital of {country} as a JSON object", (f'"capital": "{city}"',))
            for country, (city, _) in rng.sample(list(facts.COUNTRIES.items()), 10)
        ],
        "small talk": [
            Question("hello", ("how can i help",)),
            Question("hi there!", ("how can i help",)),
            Question("WHO ARE YOU?", (WHO,)),
            Question("so who are you", (WHO,)),
            Question("what can you do for me?", (HELP,)),
            Question("thank you so much", ("welcome",)),
            Question("bye bye", ("goodbye",)),
            Question("My name is Anna", ("anna",)),
            Question("Are you a human being?", ("not a human",)),
            Question("Repeat after me: red green blue", ("red green blue",)),
        ],
        "outside its domain": [
            Question(text, (SORRY,))
            for text in (
                "Who won the football match yesterday?",
                "What do you think about sharks?",
                "Write me a Java program",
                "Who is the richest man?",
                "What is the capital of Narnia?",
                "What is a flibbertigibbet?",
                "How do I cook a turkey?",
                "What is the price of bread in Paris?",
                "Who is Albert Einstein?",
                "Tell me about the history of Rome",
            )
        ],
    }
    assert SORRY in CANNOT
    return {
        name: [
            Question(q.text, tuple(part.lower() for part in q.expected))
            for q in questions
            if normalise(q.text) not in HELD_OUT_KEYS
        ]
        for name, questions in groups.items()
    }


def sums(rng: Random, top: int, count: int) -> list[Question]:
    """Return additions and subtractions up to top, and below 21 multiplications too."""
    out = []
    for _ in range(count):
        operation = rng.choice(["plus", "minus"] if top > 20 else ["plus", "plus", "minus", "times"])
        left, right = sorted((rng.randint(0, top), rng.randint(0, top)), reverse=True)
        if operation == "times":
            left, right = left % 13, right % 13
        out.append(
            Question(
                f"Hey, how much is {left} {operation} {right}?",
                (f"{left} {operation} {right} is {solve(left, operation, right)}.",),
            )
        )
    return out


def tables(rng: Random) -> list[Question]:
    """Return questions on opposites, sounds, young animals, colours and the calendar."""
    out = [
        Question(f"Tell me the opposite of {word}", (f"is {other}.",))
        for word, other in rng.sample(facts.OPPOSITES, 8)
    ]
    out += [
        Question(f"What sound does the {animal} make?", (sound,))
        for animal, sound in rng.sample(list(facts.SOUNDS.items()), 4)
    ]
    out += [
        Question(f"How is a baby {animal} called?", (young,))
        for animal, young in rng.sample(list(facts.BABIES.items()), 4)
    ]
    out += [
        Question(f"What is the color of {thing}?", (f"is {colour}.",))
        for thing, colour in rng.sample(list(facts.COLOURS.items()), 4)
    ]
    out += [
        Question(f"Which month follows {month}?", (facts.MONTHS[(i + 1) % 12],))
        for i, month in rng.sample(list(enumerate(facts.MONTHS)), 4)
    ]
    return out


def counting(ranges: list[tuple[int, int]]) -> list[Question]:
    """Return one request to count for each range, which has to be right to the last number."""
    return [
        Question(
            f"Would you count from {first} to {last}?", (", ".join(map(str, range(first, last + 1))) + ".",)
        )
        for first, last in ranges
    ]
