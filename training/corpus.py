"""What text is the demo model trained on? Conversations drawn from the topics by one seeded generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from training import copying, knowledge, numbers, places, smalltalk, structured, telling, unknown
from training.phrasing import Exchange
from training.questions import HELD_OUT_KEYS, normalise
from training.structured import Message, Tool

Topic = Callable[[Random], list[Exchange]]
# Weight per topic. Topics with more facts to learn come up more often; long answers bring many tokens each.
TOPICS: list[tuple[Topic, float]] = [
    (places.capital, 9),
    (places.continent, 4),
    (knowledge.definition, 9),
    (knowledge.plain, 7),
    (knowledge.table, 8),
    (knowledge.calendar, 4),
    (telling.listing, 2.5),
    (telling.counting, 7),
    (telling.story, 2),
    (telling.long_text, 3),
    (numbers.arithmetic, 42),
    (numbers.comparison, 3),
    (smalltalk.smalltalk, 8),
    (unknown.unknown, 8),
    (copying.name_memory, 3),
    (copying.repeat, 8),
    (structured.json_answer, 6),
]
SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "You are a helpful assistant. Answer briefly.",
    "Be concise.",
    "You are SplitServe.",
    "You answer questions.",
    "You are a helpful and polite assistant who answers in whole sentences.",
    "Answer truthfully.",
    "You are an AI.",
]
NUM_TURNS = [1, 1, 1, 1, 2, 2, 3, 4, 7]


@dataclass(slots=True)
class Conversation:
    """Chat messages as the template takes them, and the tools on offer."""

    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)

    def user_turns(self) -> list[str]:
        """Return what the user says, turn by turn."""
        return [message["content"] for message in self.messages if message["role"] == "user"]


def exchanges(rng: Random, num_topics: int) -> list[Exchange]:
    """Return the exchanges of num_topics topics drawn by weight, none with a held-out question."""
    out: list[Exchange] = []
    names, weights = [topic for topic, _ in TOPICS], [weight for _, weight in TOPICS]
    for topic in rng.choices(names, weights, k=num_topics):
        drawn = topic(rng)
        if not any(normalise(exchange.question) in HELD_OUT_KEYS for exchange in drawn):
            out += drawn
    return out or exchanges(rng, 1)


def as_messages(turns: list[Exchange]) -> list[Message]:
    """Return exchanges as alternating user and assistant messages."""
    out: list[Message] = []
    for turn in turns:
        out.append({"role": "user", "content": turn.question})
        out.append({"role": "assistant", "content": turn.answer})
    return out


def conversation(rng: Random) -> Conversation:
    """Draw one conversation: with or without system message, tools and earlier turns."""
    tools: list[Tool] = []
    messages: list[Message] = []
    if rng.random() < 0.13:
        tools, messages = structured.tool_conversation(rng)
        if rng.random() < 0.25:
            extra = as_messages(exchanges(rng, 1))
            # An ordinary question while tools are on offer, before or after the tool's turn.
            messages = (
                extra + messages if rng.random() < 0.5 or messages[-1]["content"] == "" else messages + extra
            )
        elif rng.random() < 0.25:
            messages = as_messages(exchanges(rng, 1))
    else:
        messages = as_messages(exchanges(rng, rng.choice(NUM_TURNS)))
    if rng.random() < 0.3:
        messages = [{"role": "system", "content": rng.choice(SYSTEM_PROMPTS)}, *messages]
    return Conversation(messages, tools)


def conversations(seed: int, count: int) -> Iterator[Conversation]:
    """Yield count conversations; the same seed yields the same ones."""
    rng = Random(seed)
    for _ in range(count):
        yield conversation(rng)
