"""What text is the demo model trained on? Conversations drawn from the topics by one seeded generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from training import copying, json_answers, knowledge, numbers, places, smalltalk, telling, unknown
from training.phrasing import Exchange
from training.questions import HELD_OUT_KEYS, normalise
from training.thinking import thoughtful
from training.tools.dialogue import tool_conversation
from training.tools.doing import CALCULATORS
from training.tools.schema import Message, Tool

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
    (json_answers.json_answer, 6),
    (json_answers.extraction, 16),
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
# How many conversations are about tools, and how many of these and of the others think before they answer.
TOOL_SHARE = 0.6
THINKING_SHARE = 0.14


@dataclass(slots=True)
class Conversation:
    """Chat messages as the template takes them, and the tools on offer."""

    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)

    def user_turns(self) -> list[str]:
        """Return what the user says, turn by turn."""
        return [message["content"] for message in self.messages if message["role"] == "user"]


def exchanges(rng: Random, num_topics: int, topics: list[tuple[Topic, float]] = TOPICS) -> list[Exchange]:
    """Return the exchanges of num_topics topics drawn by weight, none with a held-out question."""
    out: list[Exchange] = []
    names, weights = [topic for topic, _ in topics], [weight for _, weight in topics]
    for topic in rng.choices(names, weights, k=num_topics):
        drawn = topic(rng)
        if not any(normalise(exchange.question) in HELD_OUT_KEYS for exchange in drawn):
            out += drawn
    return out or exchanges(rng, 1, topics)


def as_messages(turns: list[Exchange]) -> list[Message]:
    """Return exchanges as alternating user and assistant messages."""
    out: list[Message] = []
    for turn in turns:
        out.append({"role": "user", "content": turn.question})
        out.append({"role": "assistant", "content": turn.answer})
    return out


def thinking_messages(rng: Random) -> list[Message]:
    """Return one exchange with what the model thinks before its answer."""
    while True:
        (question, answer), thought = thoughtful(rng)
        if normalise(question) not in HELD_OUT_KEYS:
            reply = {"role": "assistant", "content": answer, "reasoning_content": thought}
            return [{"role": "user", "content": question}, reply]


def with_tools(rng: Random) -> tuple[list[Tool], list[Message]]:
    """Return tools and messages: a use of the tools, ordinary questions while they are on offer, or both."""
    if rng.random() < THINKING_SHARE:
        return tool_conversation(rng, thinks=True)
    tools, messages = tool_conversation(rng)
    # A sum is for the tool where there is one, and so may be what the model does not know.
    counts = any(tool["function"]["name"] in CALCULATORS for tool in tools)
    left_out: set[Topic] = {unknown.unknown, numbers.arithmetic} if counts else {unknown.unknown}
    topics = [each for each in TOPICS if each[0] not in left_out]
    chance = rng.random()
    if chance < 0.25:
        return tools, as_messages(exchanges(rng, rng.choice([1, 1, 2]), topics))
    if chance < 0.4:
        extra = as_messages(exchanges(rng, 1, topics))
        first = rng.random() < 0.5 or "tool_calls" in messages[-1]
        return tools, extra + messages if first else messages + extra
    return tools, messages


def conversation(rng: Random) -> Conversation:
    """Draw one conversation: with or without system message, tools, reasoning and earlier turns."""
    tools: list[Tool] = []
    if rng.random() < TOOL_SHARE:
        tools, messages = with_tools(rng)
    elif rng.random() < THINKING_SHARE:
        messages = thinking_messages(rng)
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
