"""How do a tool's definition and a call of it look? In the shapes of OpenAI's API."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from training.blocks import items

Message = dict[str, Any]  # a chat message as the template takes it; its keys depend on the role
Tool = dict[str, Any]
COMPACT = (",", ":")  # separators of JSON without spaces


class Use(NamedTuple):
    """One use of a tool: what the user asks, the calls that it takes, their results, and the answer."""

    tool: Tool
    question: str
    calls: list[Message]
    results: list[str]
    answer: str

    @property
    def name(self) -> str:
        """Return the function's name."""
        return str(self.tool["function"]["name"])


def make_tool(name: str, about: str, parameters: dict[str, str], rng: Random) -> Tool:
    """Return a tool definition; descriptions are sometimes left out, as users do."""
    properties: dict[str, dict[str, str]] = {}
    for key, kind in parameters.items():
        properties[key] = {"type": kind}
        if rng.random() < 0.15:
            properties[key]["description"] = f"The {key.replace('_', ' ')}"
    function: dict[str, Any] = {"name": name}
    if rng.random() < 0.7:
        function["description"] = about
    function["parameters"] = {"type": "object", "properties": properties}
    if rng.random() < 0.6:
        function["parameters"]["required"] = list(parameters)
    return {"type": "function", "function": function}


def call(name: str, arguments: dict[str, object] | str) -> Message:
    """Return one entry of an assistant message's tool_calls; arguments may be JSON as text."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


# Parameters that any tool may use now and then, so that no family can be sure of its own.
ODD_KEYS = items(
    """
    city, location, place, town, name, text, value, id, query, target, where, item, word, key, input,
    label, title, first, second, number, amount, topic, person, area, what, user, start, data, code, note
    """
)


def keys(rng: Random, *choices: str) -> list[str]:
    """Return one parameter name per choice (separated by spaces), now and then odd ones."""
    if rng.random() < 0.2:
        return rng.sample(ODD_KEYS, len(choices))
    column = rng.randrange(10)
    names = [choice.split() for choice in choices]
    return [each[column % len(each)] for each in names]
