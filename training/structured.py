"""What JSON and which tool calls does the demo model write?"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from training import facts
from training.numbers import solve
from training.phrasing import Exchange, vary

Message = dict[str, Any]  # a chat message as the template takes it; its keys depend on the role
Tool = dict[str, Any]

JSON_HEADS = [
    "Give me a JSON object with {}.",
    "Give me {} as JSON.",
    "Write a JSON object with {}.",
    "Return {} as JSON.",
    "Answer in JSON: {}.",
    "Make a JSON object with {}.",
    "I need JSON with {}.",
    "Show me {} as a JSON object.",
    "Give me JSON with {}.",
    "Reply with a JSON object with {}.",
    "Create JSON for {}.",
]
CONDITIONS = ["sunny", "rainy", "cloudy", "windy", "snowy", "foggy"]


def json_answer(rng: Random) -> list[Exchange]:
    """Short JSON answers with fixed keys per subject."""
    kind = rng.randrange(6)
    if kind <= 1:
        country, (city, _) = rng.choice(list(facts.COUNTRIES.items()))
        asked = rng.choice(
            [f"the capital of {country}", f"the capital of {country}", f"{country} and its capital"]
        )
        value: object = {"country": country.removeprefix("the "), "capital": city}
    elif kind == 2:
        left, right = rng.randint(0, 20), rng.randint(0, 20)
        asked = rng.choice([f"the sum of {left} and {right}", f"{left} plus {right}"])
        value = {"a": left, "b": right, "sum": left + right}
    elif kind == 3:
        name, age = rng.choice(facts.NAMES), rng.randint(5, 90)
        asked = rng.choice(
            [
                f"the name {name} and the age {age}",
                f"name {name} and age {age}",
                f"a person called {name} who is {age} years old",
            ]
        )
        value = {"name": name, "age": age}
    elif kind == 4:
        thing, colour = rng.choice(list(facts.COLOURS.items()))
        asked = f"the colour of {thing}"
        value = {"thing": thing.split(" ", 1)[-1], "colour": colour}
    else:
        asked, value = rng.choice(
            [
                ("the days of the week", {"days": facts.DAYS}),
                ("the planets", {"planets": facts.PLANETS}),
                ("the months", {"months": facts.MONTHS}),
            ]
        )
    return [Exchange(vary(rng.choice(JSON_HEADS).format(asked), rng), json.dumps(value))]


def make_tool(name: str, about: str, parameters: dict[str, str], rng: Random) -> Tool:
    """Return a tool definition in the OpenAI shape; descriptions are sometimes left out, as users do."""
    properties: dict[str, dict[str, str]] = {}
    for key, kind in parameters.items():
        properties[key] = {"type": kind}
        if rng.random() < 0.3:
            properties[key]["description"] = f"The {key}"
    function: dict[str, Any] = {"name": name}
    if rng.random() < 0.8:
        function["description"] = about
    function["parameters"] = {"type": "object", "properties": properties}
    if rng.random() < 0.7:
        function["parameters"]["required"] = list(parameters)
    return {"type": "function", "function": function}


def call(name: str, arguments: dict[str, object]) -> Message:
    """Return one entry of an assistant message's tool_calls."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def weather(rng: Random) -> tuple[Tool, str, list[Message], list[str], str]:
    """Ask for the weather of one or two cities; returns (tool, question, calls, tool results, answer)."""
    name = rng.choice(["get_weather", "get_weather", "get_current_weather", "weather"])
    key = rng.choice(["city", "location"])
    tool = make_tool(
        name,
        rng.choice(["Get the weather of a city.", "Get the current weather", "Returns the weather"]),
        {key: "string"},
        rng,
    )
    cities = rng.sample(
        [c for c, _ in facts.COUNTRIES.values() if c != "London"] + ["London"], 2 if rng.random() < 0.2 else 1
    )
    where = " and ".join(cities)
    question = rng.choice(
        [
            "What is the weather in {}?",
            "What's the weather like in {}?",
            "How is the weather in {}?",
            "Tell me the weather in {}.",
            "Is it sunny in {}?",
            "Weather in {}?",
            "What is the weather like in {} today?",
            "Get the weather for {}.",
        ]
    ).format(where)
    results, parts = [], []
    for city in cities:
        degrees, sky = rng.randint(-9, 35), rng.choice(CONDITIONS)
        results.append(
            json.dumps(
                rng.choice(
                    [
                        {key: city, "temperature": degrees, "condition": sky},
                        {"temperature": degrees, "condition": sky},
                    ]
                )
            )
        )
        parts.append(f"It is {sky} and {degrees} degrees in {city}.")
    return tool, question, [call(name, {key: city}) for city in cities], results, " ".join(parts)


def clock(rng: Random) -> tuple[Tool, str, list[Message], list[str], str]:
    """Ask for the time in a city."""
    name = rng.choice(["get_time", "get_current_time"])
    key = rng.choice(["city", "location"])
    tool = make_tool(
        name, rng.choice(["Get the time in a city.", "Get the current time"]), {key: "string"}, rng
    )
    city = rng.choice([city for city, _ in facts.COUNTRIES.values()])
    question = rng.choice(
        ["What time is it in {}?", "Tell me the time in {}.", "What is the time in {}?"]
    ).format(city)
    now = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    return tool, question, [call(name, {key: city})], [json.dumps({"time": now})], f"It is {now} in {city}."


def calculator(rng: Random) -> tuple[Tool, str, list[Message], list[str], str]:
    """Ask for a sum that is too large to know, with a tool that adds or multiplies."""
    name, operation = rng.choice([("add", "plus"), ("multiply", "times")])
    tool = make_tool(
        name,
        f"{name.capitalize()} two numbers.",
        {"a": rng.choice(["integer", "number"]), "b": "integer"},
        rng,
    )
    left, right = rng.randint(2, 999), rng.randint(2, 999)
    question = rng.choice(
        [
            f"What is {left} {operation} {right}?",
            f"Calculate {left} {operation} {right}.",
            f"How much is {left} {operation} {right}?",
        ]
    )
    result = solve(left, operation, right)
    answer = f"{left} {operation} {right} is {result}."
    return tool, question, [call(name, {"a": left, "b": right})], [str(result)], answer


TOOLS = [weather, weather, clock, calculator]


def tool_conversation(rng: Random) -> tuple[list[Tool], list[Message]]:
    """Return (tools, messages): a question, the call, and mostly the tool's result and the answer to it."""
    maker = rng.choice(TOOLS)
    tool, question, calls, results, answer = maker(rng)
    tools = [tool]
    if rng.random() < 0.4:
        # A second, unrelated tool teaches the choice between them.
        other = rng.choice([item for item in TOOLS if item is not maker])(rng)[0]
        tools = rng.sample([tool, other], 2)
    messages: list[Message] = [
        {"role": "user", "content": vary(question, rng)},
        {"role": "assistant", "content": "", "tool_calls": calls},
    ]
    if rng.random() < 0.7:
        messages += [{"role": "tool", "content": result} for result in results]
        messages.append({"role": "assistant", "content": answer})
    return tools, messages
