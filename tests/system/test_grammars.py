"""Forms and calls that an answer is held to, on the demo model, and grammars that mean harm."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from openai import BadRequestError, OpenAI

from tests.system.processes import Server

pytestmark = pytest.mark.system

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TABLE = {
    "type": "object",
    "properties": {"seats": {"enum": [2, 4]}, "when": {"type": "string", "pattern": "^[0-2][0-9]:00$"}},
    "required": ["seats", "when"],
    "additionalProperties": False,
}
SCHEMAS = {"weather": WEATHER, "book_table": TABLE}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
    for name, schema in SCHEMAS.items()
]
HELLO = [{"role": "user", "content": "Hello! Who are you?"}]
# No model of this size would answer that with a call, or with JSON, of its own accord.
STORY = [{"role": "user", "content": "Tell me a short story"}]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def check(calls: list[tuple[str, str]]) -> None:
    assert calls
    for name, arguments in calls:
        Draft202012Validator(SCHEMAS[name]).validate(json.loads(arguments))


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.5, "seed": 5, "n": 3}], ids=str)
@pytest.mark.parametrize("choice", ["required", named("book_table")], ids=["required", "named"])
def test_a_call_that_is_demanded_is_made_and_valid(
    client: OpenAI, model: str, choice: Any, options: dict[str, Any]
) -> None:
    fields = {"model": model, "messages": STORY, "tools": TOOLS, "tool_choice": choice, "max_tokens": 400}
    answer = client.chat.completions.create(**fields, **options)
    for each in answer.choices:
        assert each.message.content is None
        calls = [(call.function.name, call.function.arguments) for call in each.message.tool_calls or ()]
        if each.finish_reason != "length":
            check(calls)
        if choice != "required":
            assert [name for name, _ in calls] == ["book_table"]
    streamed = client.chat.completions.create(**fields, **options, stream=True)
    arguments: dict[tuple[int, int], str] = {}
    for chunk in streamed:
        for part in chunk.choices:
            for call in part.delta.tool_calls or ():
                key = (part.index, call.index)
                arguments[key] = arguments.get(key, "") + (call.function.arguments or "")
    whole = {
        (each.index, i): call.function.arguments
        for each in answer.choices
        for i, call in enumerate(each.message.tool_calls or ())
    }
    assert arguments == whole


def test_beside_tools_an_answer_has_the_form_that_was_asked_for(client: OpenAI, model: str) -> None:
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string", "maxLength": 30}, "pages": {"type": "integer"}},
        "required": ["title", "pages"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model=model,
        messages=STORY,
        tools=TOOLS,
        response_format={"type": "json_schema", "json_schema": {"name": "story", "schema": schema}},
        temperature=0,
        max_tokens=300,
    )
    message = answer.choices[0].message
    if message.tool_calls:
        check([(call.function.name, call.function.arguments) for call in message.tool_calls])
    else:
        Draft202012Validator(schema).validate(json.loads(message.content))


def test_the_other_apis_demand_calls_as_well(server: Server, client: OpenAI, model: str) -> None:
    functions = [{"type": "function", "name": name, "parameters": each} for name, each in SCHEMAS.items()]
    response = client.responses.create(
        model=model, input="Tell me a short story", tools=functions, tool_choice="required", temperature=0
    )
    check([(item.name, item.arguments) for item in response.output if item.type == "function_call"])
    body = {
        "messages": STORY,
        "max_tokens": 400,
        "temperature": 0,
        "tools": [{"name": name, "input_schema": each} for name, each in SCHEMAS.items()],
    }
    for choice, name in (({"type": "any"}, None), ({"type": "tool", "name": "book_table"}, "book_table")):
        answer = httpx.post(f"{server.base_url}/messages", json=body | {"tool_choice": choice}, timeout=60)
        found = answer.json()
        assert found["stop_reason"] == "tool_use"
        calls = [(each["name"], json.dumps(each["input"])) for each in found["content"]]
        check(calls)
        assert name is None or [each for each, _ in calls] == [name]


@pytest.mark.parametrize("stream", [False, True])
def test_each_api_names_a_field_as_it_is_called_there(server: Server, stream: bool) -> None:
    never = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    chat = {"name": "f", "strict": True, "parameters": never}
    bodies: dict[str, dict[str, Any]] = {
        "chat/completions": {"messages": HELLO, "tools": [{"type": "function", "function": chat}]},
        "responses": {"input": "x", "tools": [{"type": "function"} | chat]},
        "messages": {
            "messages": HELLO,
            "max_tokens": 9,
            "tools": [{"name": "f", "strict": True, "input_schema": never}],
        },
    }
    found = {}
    for path, body in bodies.items():
        answer = httpx.post(f"{server.base_url}/{path}", json=body | {"stream": stream}, timeout=60)
        assert answer.status_code == 400
        found[path] = answer.json()["error"]["message"].partition(":")[0]
    assert found == {
        "chat/completions": "tools[0].function.parameters.properties.a",
        "responses": "tools[0].parameters.properties.a",
        "messages": "tools[0].input_schema.properties.a",
    }


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def of_schema(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
SELF = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
SCHEMA = "response_format.json_schema.schema"
# What is sent, and the field that the error names: "" where the machine decides whether the check or a later
# token takes too long, None where it may as well be served.
HARM: dict[str, tuple[dict[str, Any], str | None]] = {
    "broken regex": ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    "backtracking regex": ({"structured_outputs": {"regex": "(a+)+$"}}, None),
    "squared repetition": ({"structured_outputs": {"regex": "a{1000}{1000}"}}, ""),
    "lookahead": ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs.regex"),
    "backreference": ({"structured_outputs": {"regex": r"(a)\1"}}, "structured_outputs.regex"),
    "endless reference": (of_schema(LOOP), SCHEMA),
    "endless value": (of_schema(SELF), SCHEMA),
    "remote reference": (of_schema({"$ref": "http://127.0.0.1:1/schema.json"}), SCHEMA),
    "file reference": (of_schema({"$ref": "file:///etc/passwd"}), SCHEMA),
    "huge enum": (of_schema({"enum": [f"v{i}" for i in range(10**5)]}), SCHEMA),
    "depth 100": (of_schema(nested(100)), None),
    "contradiction": (of_schema({"type": "integer", "minimum": 5, "maximum": 4}), SCHEMA),
    "nothing": (of_schema({"type": "string", "enum": []}), SCHEMA),
    "huge pattern": (of_schema({"patternProperties": {"(a|b){3000}": {"type": "string"}}}), None),
    "left recursion": ({"structured_outputs": {"grammar": "start: start"}}, "structured_outputs.grammar"),
    "ambiguity": ({"structured_outputs": {"grammar": 'start: a*\na: b*\nb: "x"*'}}, None),
    "no grammar": ({"structured_outputs": {"grammar": "("}}, "structured_outputs.grammar"),
    "tools of one name": ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].function.name"),
    "a tool's name": (
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        "tools[0].function.name",
    ),
    "200 tools": (
        {"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(200)]},
        "tools",
    ),
    "a tool's schema": (
        {"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": SELF}}]},
        "tools[0].function.parameters",
    ),
    "a tool's pattern": (
        {
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "f",
                        "parameters": {"properties": {"a": {"type": "string", "pattern": "("}}},
                    },
                }
            ],
            "tool_choice": "required",
        },
        "tools[0].function.parameters",
    ),
}


def test_grammars_that_mean_harm_get_an_error_and_nobody_else_notices(client: OpenAI, model: str) -> None:
    fields = {"model": model, "messages": STORY, "temperature": 0, "max_tokens": 40}
    undisturbed = client.chat.completions.create(**fields).choices[0].message.content
    others: list[str | None] = []
    is_over = threading.Event()

    def keep_asking() -> None:
        while not is_over.is_set():
            others.append(client.chat.completions.create(**fields).choices[0].message.content)

    neighbour = threading.Thread(target=keep_asking)
    neighbour.start()
    try:
        for name, (harm, param) in HARM.items():
            try:
                client.chat.completions.create(model=model, messages=HELLO, max_tokens=8, **with_extra(harm))
            except BadRequestError as error:
                body: Any = error.body
                assert not param or body["param"] == param, (name, body)
            else:
                assert param is None, name
    finally:
        is_over.set()
        neighbour.join()
    assert set(others) == {undisturbed}


def with_extra(fields: dict[str, Any]) -> dict[str, Any]:
    """What the SDK has no parameter for goes as it is."""
    own = {key: value for key, value in fields.items() if key == "structured_outputs"}
    return {key: value for key, value in fields.items() if key not in own} | {"extra_body": own}


def test_each_request_may_have_a_schema_of_its_own(client: OpenAI, model: str) -> None:
    for i in range(100):
        schema = {
            "type": "object",
            "properties": {f"k{i}": {"const": i}},
            "required": [f"k{i}"],
            "additionalProperties": False,
        }
        answer = client.chat.completions.create(
            model=model, messages=HELLO, temperature=0, max_tokens=40, **of_schema(schema)
        )
        assert json.loads(answer.choices[0].message.content or "") == {f"k{i}": i}
