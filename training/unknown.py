"""What does the demo model not know, and how does it say so?"""

from __future__ import annotations

from random import Random

from training.blocks import items
from training.phrasing import Exchange, vary

CANNOT = "I am sorry, I do not know that. I am only a very small demo model."
THINGS = items(
    """
    stock market | quantum physics | the French Revolution | football | basketball | the election |
    politics | philosophy | chemistry | the price of gold | Bitcoin | the lottery | my neighbour |
    your favourite film | Harry Potter | Star Wars | the Roman Empire | Napoleon | Julius Caesar |
    Einstein | Picasso | Beethoven | Taylor Swift | Elon Musk | the president | the weather tomorrow
    | my homework | taxes | the law | medicine | headaches | love | the meaning of life | God | the
    future | dinosaurs | black holes | relativity | evolution | sushi | pizza dough | lasagne | car
    engines | aeroplanes | trains to London | hotels in Rome | my car | the news | the Olympics |
    chess openings | poker | the guitar | jazz | opera | fashion | shoes | perfume | the Bible |
    Greek myths | vampires | dragons | Kubernetes | Rust generics | quicksort | regular expressions
    | SQL joins | blockchain | the Treaty of Westphalia | inflation | mortgages | gardening |
    photosynthesis | mitochondria | the human heart | vitamins | yoga | marathon training | Mars
    missions | the Titanic | pyramids | Vikings | samurai | the Cold War | World War II | the moon
    landing conspiracy | ghosts | dreams | poetry of Rilke | Tolstoy | Dostoevsky | Kafka
    """,
    "|",
)
ABOUT_THINGS = [
    "What do you think about {}?",
    "Write an essay about {}.",
    "Who invented {}?",
    "What happened to {}?",
    "Tell me everything about {}.",
    "Why is {} important?",
    "What is the history of {}?",
    "Give me advice on {}.",
    "How do I learn about {}?",
    "What is {}?",
    "Explain {}.",
    "Tell me about {}.",
    "When did {} begin?",
    "Who is {}?",
    "How much does {} cost?",
    "What will happen with {}?",
    "Write a report on {}.",
    "Summarize {}.",
    "Translate {}.",
    "What is the best book about {}?",
    "Can you write code for {}?",
    "How does {} work?",
    "Define {}.",
]
FIXED = [
    "What is the weather today?",
    "What time is it?",
    "What day is today?",
    "What is the date?",
    "Who is the president?",
    "Who won the world cup?",
    "Write a Python program.",
    "Write a function that sorts a list.",
    "Fix my code.",
    "What is the meaning of life?",
    "How do I get rich?",
    "What should I eat tonight?",
    "Where do I live?",
    "Who will win the election?",
    "Translate this into French.",
    "Book a flight for me.",
    "Play some music.",
    "Turn on the light.",
    "Who is the king of England?",
    "How far is the moon?",
    "What is the speed of light?",
    "How many people live in China?",
    "What is the population of Germany?",
    "Send an email to Bob.",
    "What am I thinking?",
    "What is my phone number?",
    "How tall is Mount Everest?",
    "Who discovered America?",
]
SYLLABLES = items(
    """
    ba, be, bo, da, do, fi, ga, gu, ka, ko, la, lo, ma, mi, na, no, pa, po, ra, ro, sa, si, ta, tu,
    va, ve, wo, za, zo, zu
    """
)


def invented(rng: Random) -> str:
    """Return a word that does not exist, so that the model learns to doubt unknown words."""
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4))) + rng.choice(
        ["", "", "n", "r", "st", "l", "x"]
    )


def unknown(rng: Random) -> list[Exchange]:
    """Questions outside the domain, answered by saying so."""
    kind = rng.random()
    if kind < 0.2:
        place = invented(rng).capitalize()
        question = rng.choice(
            ["What is the capital of {}?", "Tell me the capital of {}.", "what is the capital of {}"]
        )
        return [Exchange(vary(question.format(place), rng), CANNOT)]
    if kind < 0.35:
        question = rng.choice(
            ["What is a {}?", "What is {}?", "Define {}.", "What does {} mean?", "Explain {}."]
        )
        return [Exchange(vary(question.format(invented(rng)), rng), CANNOT)]
    if kind < 0.5:
        return [Exchange(vary(rng.choice(FIXED), rng), CANNOT)]
    return [Exchange(vary(rng.choice(ABOUT_THINGS).format(rng.choice(THINGS)), rng), CANNOT)]
