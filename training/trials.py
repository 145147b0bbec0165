"""How are tool calls, JSON and reasoning judged? By conversations, each with a test of the next turn."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from training.corpus import Conversation
from training.json_answers import extraction
from training.thinking import long_sum
from training.tools.dialogue import tool_conversation
from training.tools.questions import HELD_OUT_TOOLS, ToolQuestion, has_calls, is_right_use
from training.tools.schema import Message

SEED = 20261126
END_OF_THOUGHT = "</think>\n"
Judge = Callable[[str], bool]


class Trial(NamedTuple):
    """A conversation up to the assistant's turn, and whether a text is right as that turn."""

    conversation: Conversation
    is_right: Judge
    thinks: bool = False

    @property
    def label(self) -> str:
        """Return the user's last words."""
        return self.conversation.user_turns()[-1]


def tool_trials(questions: list[ToolQuestion]) -> list[Trial]:
    """Return the trials of written tool questions."""
    return [
        Trial(Conversation(each.messages(), each.tools), partial(is_right_use, each)) for each in questions
    ]


def drawn_conversations(rng: Random, count: int, with_results: bool) -> list[Conversation]:
    """Draw tool conversations that call tools, and have their results and an answer or not."""
    out: list[Conversation] = []
    while len(out) < count:
        tools, messages = tool_conversation(rng)
        if "tool_calls" in messages[1] and (not with_results or len(messages) > 2):
            out.append(Conversation(messages, tools))
    return out


def drawn_calls(rng: Random, count: int) -> list[Trial]:
    """Return trials that want the calls of drawn conversations."""
    out = []
    for drawn in drawn_conversations(rng, count, with_results=False):
        functions = [each["function"] for each in drawn.messages[1]["tool_calls"]]
        calls = [(each["name"], arguments_of(each)) for each in functions]
        out.append(Trial(Conversation(drawn.messages[:1], drawn.tools), partial(has_calls, calls)))
    return out


def arguments_of(function: Message) -> dict[str, object]:
    """Return a call's arguments, which may be JSON as text."""
    arguments: dict[str, object] | str = function["arguments"]
    return dict(json.loads(arguments)) if isinstance(arguments, str) else arguments


def drawn_answers(rng: Random, count: int) -> list[Trial]:
    """Return trials that want the answer to the results of drawn conversations, word for word."""
    return [
        Trial(
            Conversation(drawn.messages[:-1], drawn.tools), partial(str.__eq__, drawn.messages[-1]["content"])
        )
        for drawn in drawn_conversations(rng, count, with_results=True)
    ]


def is_json(value: object, text: str) -> bool:
    """Return whether a text is JSON of a value."""
    try:
        return bool(json.loads(text) == value)
    except ValueError:
        return False


def extractions(rng: Random, count: int) -> list[Trial]:
    """Return trials that want values of a sentence as JSON, under the keys that the request names."""
    out: list[Trial] = []
    while len(out) < count:
        (exchange,) = extraction(rng)
        value = json.loads(exchange.answer)
        if all(key in exchange.question for key in value):
            conversation = Conversation([{"role": "user", "content": exchange.question}])
            out.append(Trial(conversation, partial(is_json, value)))
    return out


def sums(rng: Random, count: int, thinks: bool) -> list[Trial]:
    """Return sums below 100, to be answered with reasoning or without."""
    out = []
    for _ in range(count):
        exchange, _thought = long_sum(rng)
        conversation = Conversation([{"role": "user", "content": exchange.question}])
        out.append(Trial(conversation, partial(ends_with, exchange.answer), thinks))
    return out


def ends_with(wanted: str, text: str) -> bool:
    """Return whether a text, without its reasoning, is the answer that is wanted."""
    return text.rpartition(END_OF_THOUGHT)[2].strip() == wanted


def trials() -> dict[str, list[Trial]]:
    """Return the trials by group; the draw is seeded, so every run asks the same ones."""
    return {
        "held-out tool questions": tool_trials(HELD_OUT_TOOLS),
        "drawn tool calls": drawn_calls(Random(SEED), 60),
        "drawn answers from tool results": drawn_answers(Random(SEED + 1), 40),
        "values as JSON": extractions(Random(SEED + 2), 40),
        "sums below 100 with reasoning": sums(Random(SEED + 3), 40, thinks=True),
        "sums below 100 without": sums(Random(SEED + 3), 40, thinks=False),
    }
