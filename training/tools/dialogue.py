"""How does a conversation with tools go? A question, the calls, mostly the results and the answer to them."""

from __future__ import annotations

import json
from random import Random

from training.blocks import items
from training.phrasing import PREFIXES, lower_first
from training.questions import HELD_OUT_KEYS, normalise
from training.tools.families import FAMILIES
from training.tools.questions import HELD_OUT_TOOL_KEYS
from training.tools.schema import COMPACT, Message, Tool, Use
from training.tools.schema import call as make_call

CANNOT = "I am sorry, I have no tool for that."
# What may stand before and after a question that is an order, and before any.
ORDERS = tuple(
    items(
        """
        Get, Tell, Check, Show, Calculate, Compute, Work, Add, Multiply, Take, Subtract, Search, Look, Find,
        Remind, Set, Send, Write, Email, Convert, Change, Exchange, Turn, Roll, Throw, Give, Use
        """
    )
)
ASKED = [
    "Could you {}?",
    "Can you {}?",
    "I want you to {}.",
    "You should {}.",
    "Please {}.",
    "It would be nice if you could {}.",
    "I would like you to {}.",
    "Are you able to {}?",
    "My next wish: {}.",
    "Your task is to {}.",
    "Now {}!",
]
ASIDES = [
    "I am curious: ",
    "My boss asks: ",
    "One more thing: ",
    "Just tell me: ",
    "As I do not know it: ",
    "For my trip: ",
    "First, ",
    "I was asked this: ",
    "Sorry, but ",
    "Thanks. ",
    "Good morning! ",
]
ERRORS = ["not found", "no connection", "too slow", "not allowed", "bad request", "unknown"]


def draw(rng: Random, other_than: list[Use]) -> Use:
    """Draw a use of a tool whose family and name is none of those that are there."""
    while True:
        use = rng.choice(FAMILIES)(rng)
        if use.name not in {other.name for other in other_than}:
            return use


def joined(first: Use, second: Use, rng: Random) -> tuple[str, list[Message], list[str], str]:
    """Return (question, calls, results, answer) of two uses that are asked for at once."""
    if ": " in first.question:  # what follows the colon ends with the question
        first, second = second, first
    link = rng.choice([" and ", " and ", ", and ", " and then "])
    question = first.question.rstrip("?.!") + link + lower_first(second.question)
    if rng.random() < 0.3:
        question = f"{first.question} {second.question}"
    return (
        question,
        first.calls + second.calls,
        first.results + second.results,
        f"{first.answer} {second.answer}",
    )


def vary(question: str, rng: Random) -> str:
    """Return the question as some user might type it, with its values as they are."""
    if question.startswith(ORDERS) and rng.random() < 0.35:
        question = rng.choice(ASKED).format(lower_first(question.rstrip(".")))
    elif rng.random() < 0.25:
        question = rng.choice(PREFIXES + ASIDES) + lower_first(question)
    if rng.random() < 0.3:
        question = question.rstrip("?.!")
    if rng.random() < 0.15:
        question = lower_first(question)
    return question


def thought(calls: list[Message]) -> str:
    """Return what the model thinks before it calls tools: which ones, and with which values."""
    parts = []
    for call in calls:
        function = call["function"]
        given = ", ".join(f"{key} is {value}" for key, value in function["arguments"].items())
        parts.append(f"I call {function['name']}: {given}.")
    return " ".join(parts)


def as_text(calls: list[Message]) -> list[Message]:
    """Return calls whose arguments are JSON without spaces, as a server's grammar has them."""
    return [
        make_call(call["function"]["name"], json.dumps(call["function"]["arguments"], separators=COMPACT))
        for call in calls
    ]


def offer(rng: Random, uses: list[Use]) -> list[Tool]:
    """Return the tools of the uses among up to two others, in any order."""
    offered = list(uses)
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
        offered.append(draw(rng, offered))
    return [use.tool for use in rng.sample(offered, len(offered))]


def tool_conversation(rng: Random, thinks: bool = False) -> tuple[list[Tool], list[Message]]:
    """Return (tools, messages): a question, the calls, and mostly the results and the answer to them."""
    use = draw(rng, [])
    uses = [use]
    question, calls, results, answer = use[1:]
    if len(calls) == 1 and rng.random() < 0.12:
        second = draw(rng, uses)
        if len(second.calls) == 1:
            uses.append(second)
            question, calls, results, answer = joined(use, second, rng)
    tools = offer(rng, uses)
    question = vary(question, rng)
    if normalise(question) in HELD_OUT_KEYS | HELD_OUT_TOOL_KEYS:
        return tool_conversation(rng, thinks)
    messages: list[Message] = [{"role": "user", "content": question}]
    chance = rng.random()
    if chance < 0.03:
        kept = [tool for tool in tools if tool not in [each.tool for each in uses]]
        if kept:
            return kept, [*messages, {"role": "assistant", "content": CANNOT}]
    written = as_text(calls) if rng.random() < 0.25 else calls
    reply: Message = {"role": "assistant", "content": "", "tool_calls": written}
    messages.append(reply | {"reasoning_content": thought(calls)} if thinks else reply)
    if chance < 0.06 and len(calls) == 1:
        error = rng.choice(ERRORS)
        results, answer = [f'{{"error": "{error}"}}'], f"The tool reports an error: {error}."
    if rng.random() < 0.6 and not thinks:
        messages += [{"role": "tool", "content": result} for result in results]
        messages.append({"role": "assistant", "content": answer})
    return tools, messages
