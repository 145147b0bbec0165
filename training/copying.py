"""What does the demo model take over from the conversation? The user's name, and words to repeat."""

from __future__ import annotations

from random import Random

from training import facts
from training.blocks import items
from training.phrasing import Exchange, vary
from training.unknown import invented

WORDS = items(
    """
    apple, river, stone, window, yellow, garden, music, paper, silver, cloud, market, orange,
    winter, summer, candle, mirror, bottle, ladder, engine, button, castle, forest, pepper, rocket,
    travel, simple, bright, quiet, happy, little, green, table, chair, house, water, light, hello,
    world, good, morning, friend, train, letter, number, blue, seven, cat, dog, bird, fish, tree
    """
)
PEOPLE = [
    "My name is {}.",
    "I am {}.",
    "I'm {}",
    "Call me {}.",
    "Hello, my name is {}.",
    "Hi, I am {}.",
    "you can call me {}",
    "Hi! My name is {}",
]


def name_memory(rng: Random) -> list[Exchange]:
    """The user gives a name and may ask for it in the next turn."""
    name = rng.choice(facts.NAMES)
    out = [Exchange(rng.choice(PEOPLE).format(name), f"Nice to meet you, {name}!")]
    if rng.random() < 0.5:
        question = rng.choice(
            [
                "What is my name?",
                "Who am I?",
                "Do you know my name?",
                "What's my name?",
                "Do you remember my name?",
                "What am I called?",
            ]
        )
        out.append(Exchange(vary(question, rng), f"Your name is {name}."))
    return out


def repeat(rng: Random) -> list[Exchange]:
    """Repeating words; copying from the prompt is what names and tool calls build on."""
    words = [
        rng.choice(WORDS) if rng.random() < 0.7 else invented(rng)
        for _ in range(rng.choice([1, 2, 2, 3, 3, 4, 6]))
    ]
    text = " ".join(words)
    if rng.random() < 0.5:
        text = text.capitalize() + rng.choice(["", ".", "!"])
    head = rng.choice(
        [
            "Repeat: {}",
            "Say: {}",
            "Repeat after me: {}",
            'Say "{}"',
            "Echo: {}",
            'Repeat "{}"',
            "Say {}",
            "Write: {}",
            "Repeat this: {}",
        ]
    )
    return [Exchange(head.format(text), text)]
