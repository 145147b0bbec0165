"""Which tool questions judge the demo model? None of them occurs in the text word for word."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from training.questions import normalise

Call = tuple[str, dict[str, object]]
MARKED = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


class ToolQuestion(NamedTuple):
    """A user's words with the tools on offer, the calls that are right, and what an answer has to hold.

    results are those of the calls; with them the model is asked for the answer instead of the calls.
    """

    text: str
    tools: list[dict[str, Any]]
    calls: list[Call]
    results: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()

    def messages(self) -> list[dict[str, Any]]:
        """Return the conversation up to the turn that is judged."""
        asked: list[dict[str, Any]] = [{"role": "user", "content": self.text}]
        if not self.results:
            return asked
        made = [
            {
                "id": f"call_{i}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for i, (name, arguments) in enumerate(self.calls)
        ]
        asked.append({"role": "assistant", "content": "", "tool_calls": made})
        return asked + [
            {"role": "tool", "tool_call_id": f"call_{i}", "content": result}
            for i, result in enumerate(self.results)
        ]


def tool(name: str, about: str, **parameters: str) -> dict[str, Any]:
    """Return a tool definition whose parameters, given with their types, are all required."""
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


WEATHER = tool("get_weather", "Get the weather of a city.", city="string")
CLOCK = tool("get_time", "Get the time in a city.", city="string")
ADD = tool("add", "Add two numbers.", a="integer", b="integer")
MULTIPLY = tool("multiply", "Multiply two numbers.", x="integer", y="integer")
SEARCH = tool("search", "Search the web.", query="string")
REMINDER = tool("set_reminder", "Set a reminder.", text="string", time="string")
MESSAGE = tool("send_message", "Send a message to a person.", to="string", text="string")
CURRENCY = tool(
    "convert_currency", "Convert money.", **{"amount": "number", "from": "string", "to": "string"}
)
DICE = tool("roll_dice", "Roll a die.", sides="integer")
ORDER = tool("get_order", "Look up an order.", order_id="integer")
PLACE_WEATHER = tool("get_current_weather", "Get the current weather", location="string")


def money(amount: int, source: str, target: str) -> Call:
    """Return a call of CURRENCY."""
    return "convert_currency", {"amount": amount, "from": source, "to": target}


HELD_OUT_TOOLS = [
    ToolQuestion(
        "How does the weather look in Oslo right now?", [WEATHER], [("get_weather", {"city": "Oslo"})]
    ),
    ToolQuestion(
        "I fly to Nairobi tomorrow, what is the weather there?",
        [CLOCK, PLACE_WEATHER],
        [("get_current_weather", {"location": "Nairobi"})],
    ),
    ToolQuestion(
        "Could you tell me what time they have in Lima?", [CLOCK, WEATHER], [("get_time", {"city": "Lima"})]
    ),
    ToolQuestion("What would 347 plus 58 be?", [ADD], [("add", {"a": 347, "b": 58})]),
    ToolQuestion("Kindly add 912 and 77 for me", [MULTIPLY, ADD], [("add", {"a": 912, "b": 77})]),
    ToolQuestion("Could you multiply 36 by 41?", [ADD, MULTIPLY], [("multiply", {"x": 36, "y": 41})]),
    ToolQuestion(
        "Would you search the web for cheap tents?", [SEARCH], [("search", {"query": "cheap tents"})]
    ),
    ToolQuestion(
        "Don't let me forget to wash the car at 16:45",
        [REMINDER],
        [("set_reminder", {"text": "wash the car", "time": "16:45"})],
    ),
    ToolQuestion(
        'Let Henry know: "the door is open"',
        [MESSAGE, REMINDER],
        [("send_message", {"to": "Henry", "text": "the door is open"})],
    ),
    ToolQuestion("How many CHF do I get for 85 GBP?", [CURRENCY], [money(85, "GBP", "CHF")]),
    ToolQuestion("Let us roll a die with 14 sides", [DICE, WEATHER], [("roll_dice", {"sides": 14})]),
    ToolQuestion("Can you see where order 5208 is?", [ORDER], [("get_order", {"order_id": 5208})]),
    ToolQuestion(
        "Compare the weather in Dublin and Cairo",
        [WEATHER],
        [("get_weather", {"city": "Dublin"}), ("get_weather", {"city": "Cairo"})],
    ),
    ToolQuestion(
        "I need the time in Tokyo and Madrid",
        [WEATHER, CLOCK],
        [("get_time", {"city": "Tokyo"}), ("get_time", {"city": "Madrid"})],
    ),
    ToolQuestion(
        "Tell me the weather in Vienna, and also look up order 731",
        [WEATHER, ORDER],
        [("get_weather", {"city": "Vienna"}), ("get_order", {"order_id": 731})],
    ),
    ToolQuestion(
        "How does the weather look in Prague?",
        [WEATHER],
        [("get_weather", {"city": "Prague"})],
        ('{"temperature": -4, "condition": "foggy"}',),
        ("foggy", "-4", "prague"),
    ),
    ToolQuestion("What would 268 plus 195 be?", [ADD], [("add", {"a": 268, "b": 195})], ("463",), ("463",)),
    ToolQuestion(
        "Can you see where order 940 is?",
        [ORDER],
        [("get_order", {"order_id": 940})],
        ('{"status": "packed"}',),
        ("940", "packed"),
    ),
    ToolQuestion("Would you tell me the capital of Portugal?", [ADD, DICE], [], expected=("lisbon",)),
    ToolQuestion("Hello my dear, who are you?", [WEATHER, SEARCH], [], expected=("demo model",)),
]

# Asked once, when the weights are final, and not before: what was not looked at cannot have been tuned to.
FINAL_TOOLS = [
    ToolQuestion(
        "What sort of weather do they have in Helsinki?", [WEATHER], [("get_weather", {"city": "Helsinki"})]
    ),
    ToolQuestion(
        "My sister lives in Bangkok. How is the weather over there?",
        [PLACE_WEATHER, SEARCH],
        [("get_current_weather", {"location": "Bangkok"})],
    ),
    ToolQuestion(
        "Say, what does the clock show in Ottawa?", [WEATHER, CLOCK], [("get_time", {"city": "Ottawa"})]
    ),
    ToolQuestion("Could you work out 456 plus 29?", [ADD, CLOCK], [("add", {"a": 456, "b": 29})]),
    ToolQuestion("I would like to add 65 and 718", [ADD], [("add", {"a": 65, "b": 718})]),
    ToolQuestion("Kindly multiply 83 by 12", [MULTIPLY], [("multiply", {"x": 83, "y": 12})]),
    ToolQuestion("Go and search for wild horses", [MESSAGE, SEARCH], [("search", {"query": "wild horses"})]),
    ToolQuestion(
        "I want to read about famous museums, search for them",
        [SEARCH],
        [("search", {"query": "famous museums"})],
    ),
    ToolQuestion(
        "Make sure that I remember to feed the cat at 6:30",
        [REMINDER, CLOCK],
        [("set_reminder", {"text": "feed the cat", "time": "6:30"})],
    ),
    ToolQuestion(
        'Please text Wendy "dinner is ready"',
        [MESSAGE],
        [("send_message", {"to": "Wendy", "text": "dinner is ready"})],
    ),
    ToolQuestion("What do I get in SEK if I change 340 USD?", [CURRENCY, ADD], [money(340, "USD", "SEK")]),
    ToolQuestion("Give me a throw of a die with 30 sides", [DICE], [("roll_dice", {"sides": 30})]),
    ToolQuestion("Is there any news about order 86?", [SEARCH, ORDER], [("get_order", {"order_id": 86})]),
    ToolQuestion(
        "How are Athens and Bern today, the weather I mean?",
        [WEATHER],
        [("get_weather", {"city": "Athens"}), ("get_weather", {"city": "Bern"})],
    ),
    ToolQuestion(
        "Have a look at orders 3312 and 57 for me",
        [ORDER],
        [("get_order", {"order_id": 3312}), ("get_order", {"order_id": 57})],
    ),
    ToolQuestion(
        "Roll a die with 8 sides, and also tell me the time in Havana",
        [DICE, CLOCK],
        [("roll_dice", {"sides": 8}), ("get_time", {"city": "Havana"})],
    ),
    ToolQuestion(
        "Say, what does the clock show in Rome?",
        [CLOCK],
        [("get_time", {"city": "Rome"})],
        ('{"time": "21:07"}',),
        ("21:07", "rome"),
    ),
    ToolQuestion(
        "What do I get in EUR if I change 50 JPY?",
        [CURRENCY],
        [money(50, "JPY", "EUR")],
        ('{"amount": 0.31}',),
        ("50 jpy", "0.31 eur"),
    ),
    ToolQuestion(
        "I forgot what a compiler is, explain it", [SEARCH, ADD], [], expected=("translates source code",)
    ),
    ToolQuestion("Would you say what the opposite of cold is?", [WEATHER], [], expected=("hot",)),
]
HELD_OUT_TOOL_KEYS = frozenset(normalise(question.text) for question in HELD_OUT_TOOLS + FINAL_TOOLS)


def calls_in(answer: str) -> list[Call] | None:
    """Return the calls that an answer makes, None if one of them cannot be read."""
    out: list[Call] = []
    for body in MARKED.findall(answer):
        try:
            made = json.loads(body)
            out.append((made["name"], made["arguments"]))
        except (ValueError, KeyError, TypeError):
            return None
    return out if len(out) == answer.count("<tool_call>") else None


def is_right_use(question: ToolQuestion, answer: str) -> bool:
    """Return whether an answer makes just the right calls, in any order, or tells what it has to."""
    if question.expected:
        low = answer.lower()
        return "<tool_call>" not in answer and all(
            re.search(rf"(?<![\w-]){re.escape(part)}(?!\w)", low) for part in question.expected
        )
    return has_calls(question.calls, answer)


def has_calls(calls: list[Call], answer: str) -> bool:
    """Return whether an answer makes just these calls, in any order."""
    made = calls_in(answer)
    return made is not None and _sorted(made) == _sorted(calls)


def _sorted(calls: list[Call]) -> list[str]:
    return sorted(json.dumps(call, sort_keys=True) for call in calls)
