"""Which longer answers does the demo model give? Stories with slots, poems, recipes and explanations."""

from __future__ import annotations

from training import facts
from training.blocks import flow, items

ANIMALS = items(
    """
    fox, rabbit, bear, mouse, owl, cat, dog, duck, frog, lion, turtle, hedgehog
    """
)
PLACES = ["a quiet forest", "a green valley", "an old garden", "a small village", "a house by the sea"]
FINDS = ["a golden key", "a little lamp", "a red balloon", "an old map", "a silver bell", "a warm scarf"]

# Slots: {name} {animal} {place} {find}
STORIES = [
    flow("""
        Once upon a time, a little {animal} named {name} lived in {place}. One morning {name} found
        {find} under a tree. {name} asked every neighbour whose it was, but nobody knew. At last an
        old owl said that it belonged to the one who would share it. So {name} shared it with
        everyone, and they had a party until the stars came out. The end.
    """),
    flow("""
        Once upon a time, there was a {animal} called {name} who lived in {place}. {name} was small
        but very curious. One day it began to rain, and the path home was gone. {name} was afraid,
        but then saw {find} shining in the grass. It showed the way, step by step, until {name} was
        home again. From that day on, {name} was never afraid of the rain. The end.
    """),
    flow("""
        Once upon a time, in {place}, a {animal} named {name} wanted to make a friend. {name} walked
        for a whole day and met nobody. In the evening {name} sat down, took out {find} and began to
        sing. A shy mouse heard the song and came closer. They sang together all night, and in the
        morning they were the best of friends. The end.
    """),
]

# (questions, answer)
TEXTS: list[tuple[list[str], str]] = [
    (
        ["Write a poem.", "Tell me a poem.", "Write me a short poem", "Can you write a poem?"],
        "The sun goes down, the day is done,\n"
        "The stars come out now, one by one.\n"
        "The moon looks in and says good night,\n"
        "And fills the room with silver light.",
    ),
    (
        ["Write a poem about the sea.", "Tell me a poem about the sea"],
        "The sea is wide, the sea is blue,\n"
        "It sings its song for me and you.\n"
        "The waves roll in, the waves roll out,\n"
        "And little fish swim all about.",
    ),
    (
        ["Write a poem about winter.", "Tell me a poem about snow"],
        "The snow falls softly on the hill,\n"
        "The trees are white, the world is still.\n"
        "A robin sings beside the door,\n"
        "And waits for spring to come once more.",
    ),
    (
        ["Tell me a joke.", "Do you know a joke?", "Make me laugh", "Say something funny"],
        "Why did the computer go to the doctor? Because it had a virus!",
    ),
    (
        ["How do I make tea?", "How do you make tea?", "Explain how to make tea", "Give me a recipe for tea"],
        "To make tea, follow these steps:\n"
        "1. Boil some water.\n"
        "2. Put a tea bag into a cup.\n"
        "3. Pour the hot water into the cup.\n"
        "4. Wait for three minutes.\n"
        "5. Take out the tea bag and enjoy your tea.",
    ),
    (
        [
            "How do I make pancakes?",
            "How do you make pancakes?",
            "Give me a recipe for pancakes",
            "Explain how to make pancakes",
        ],
        "To make pancakes, follow these steps:\n"
        "1. Mix flour, milk, eggs and a little salt.\n"
        "2. Let the batter rest for ten minutes.\n"
        "3. Heat some butter in a pan.\n"
        "4. Pour in a thin layer of batter.\n"
        "5. Turn the pancake when it is golden and bake the other side.\n"
        "6. Eat it with sugar or jam.",
    ),
    (
        [
            "How does a language model work?",
            "Explain how a language model works",
            "How do language models work?",
            "How do you work?",
        ],
        flow("""
            A language model works in a few steps. First a tokenizer splits the text into tokens.
            Then the model reads all the tokens of the prompt, which is called prefill. After that
            it writes the answer one token at a time, which is called decode. For each new token it
            looks back at everything that came before, and picks a likely next token. It stops when
            it writes the end token.
        """),
    ),
    (
        ["How does SplitServe work?", "Explain how SplitServe works", "What are the parts of SplitServe?"],
        flow("""
            SplitServe has three parts. The frontend speaks HTTP, turns text into tokens and streams
            the answer. The engine core decides which requests run next and which memory they use.
            The worker holds the model and computes the next tokens. Each part is a process of its
            own, so one of them can restart while the others go on.
        """),
    ),
    (
        ["What is the water cycle?", "Explain the water cycle", "How does rain form?"],
        flow("""
            The water cycle goes like this. The sun warms the sea, and water rises into the air as
            vapour. High up it cools down and forms clouds. The drops in the clouds grow until they
            fall as rain or snow. The rain flows into rivers, and the rivers carry the water back to
            the sea.
        """),
    ),
    (
        ["Why is the sky blue?", "Explain why the sky is blue"],
        flow("""
            The sky is blue because air scatters blue light more than red light. So blue light
            reaches our eyes from all directions.
        """),
    ),
    (
        ["Why do we have seasons?", "Explain the seasons", "Why are there seasons?"],
        flow("""
            We have seasons because the axis of the Earth is tilted. When our half of the Earth
            leans towards the sun, the days are long and warm, and we have summer. When it leans
            away, the days are short and cold, and we have winter.
        """),
    ),
]

# (what is asked for, items)
LISTS: dict[str, tuple[str, list[str]]] = {
    "the days of the week": ("The days of the week are", facts.DAYS),
    "the months of the year": ("The months of the year are", facts.MONTHS),
    "the planets": ("The planets are", facts.PLANETS),
    "the seasons": ("The seasons are", items("spring, summer, autumn, winter")),
    "the continents": (
        "The continents are",
        items("Africa, Antarctica, Asia, Europe, North America, Oceania, South America"),
    ),
    "the colours of the rainbow": (
        "The colours of the rainbow are",
        items("red, orange, yellow, green, blue, indigo, violet"),
    ),
    "the oceans": (
        "The oceans are",
        items("the Pacific, the Atlantic, the Indian, the Southern, the Arctic Ocean"),
    ),
    "the letters of the alphabet": ("The letters of the alphabet are", list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")),
}
