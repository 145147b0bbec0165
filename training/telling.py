"""Which longer answers can a user ask for? Lists, counting, stories and explanations."""

from __future__ import annotations

from random import Random

from training import facts
from training.long_texts import ANIMALS, FINDS, LISTS, PLACES, STORIES, TEXTS
from training.phrasing import Exchange, vary


def listing(rng: Random) -> list[Exchange]:
    """Lists in a sentence."""
    name, (head, items) = rng.choice(list(LISTS.items()))
    question = rng.choice(
        [
            "List {}.",
            "Name {}.",
            "What are {}?",
            "Tell me {}.",
            "Give me {}.",
            "Can you list {}?",
            "Name all {}.",
            "List all {}.",
            "Which are {}?",
            "Say {}.",
            "What are the names of {}?",
        ]
    )
    asked = name
    if rng.random() < 0.3:
        asked = name.replace(" of the year", "").replace(" of the week", "").replace(" of the alphabet", "")
    answer = f"{head} {', '.join(items[:-1])} and {items[-1]}."
    return [Exchange(vary(question.format(asked).replace("all the", "all the"), rng), answer)]


def counting(rng: Random) -> list[Exchange]:
    """Counting up, down and in twos; the long answers that streaming tests use."""
    kind = rng.random()
    if kind < 0.12:
        top = rng.choice([5, 10, 10, 20])
        question = rng.choice(
            [
                "Count down from {}.",
                "Count backwards from {}.",
                "Count from {} to 1.",
                "Count from {} down to 1.",
            ]
        )
        return [Exchange(vary(question.format(top), rng), ", ".join(map(str, range(top, 0, -1))) + ".")]
    if kind < 0.2:
        top = rng.choice([10, 20, 30])
        question = rng.choice(
            ["Count by twos to {}.", "List the even numbers up to {}.", "Count to {} in twos."]
        )
        return [Exchange(vary(question.format(top), rng), ", ".join(map(str, range(2, top + 1, 2))) + ".")]
    first = 1 if rng.random() < 0.8 else rng.randrange(2, 30)
    last = first + rng.choice([2, 4, 6, 9, 9, 9, 14, 19, 19, 24, 29, 39, 49, rng.randrange(2, 40)])
    if rng.random() < 0.05:
        first, last = 1, 100
    forms = [
        f"Count from {first} to {last}.",
        f"Can you count from {first} to {last}?",
        f"Count up from {first} to {last}.",
        f"Please count from {first} to {last}.",
        f"Write the numbers from {first} to {last}.",
        f"List the numbers from {first} to {last}.",
    ]
    if first == 1:
        forms += [f"Count to {last}.", f"Can you count to {last}?", f"Count up to {last}."]
    return [Exchange(vary(rng.choice(forms), rng), ", ".join(map(str, range(first, last + 1))) + ".")]


def story(rng: Random) -> list[Exchange]:
    """A short story, with the animal the user asked for where one was named."""
    animal, name = rng.choice(ANIMALS), rng.choice(facts.NAMES)
    head = rng.choice(
        [
            "Tell me a short story",
            "Tell me a story",
            "Write a short story",
            "Write a story",
            "Can you tell me a story",
            "Make up a story",
            "I would like to hear a story",
            "Tell a story",
            "Please tell me a short story",
            "Write me a short story",
        ]
    )
    article = "an" if animal[0] in "aeiou" else "a"
    ask = rng.random()
    if ask < 0.3:
        head += f" about {article} {animal}"
    elif ask < 0.4:
        head += f" about {article} {animal} called {name}"
    text = rng.choice(STORIES).format(
        name=name, animal=animal, place=rng.choice(PLACES), find=rng.choice(FINDS)
    )
    text = text.replace("a owl", "an owl") if animal == "owl" else text
    return [Exchange(vary(head + rng.choice([".", ".", "?", "!"]), rng), text)]


def long_text(rng: Random) -> list[Exchange]:
    """Poems, recipes and explanations."""
    questions, answer = rng.choice(TEXTS)
    return [Exchange(vary(rng.choice(questions), rng), answer)]
