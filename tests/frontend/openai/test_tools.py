"""Tools of a chat request: what the template and the engine get, and calls in whole answers and streams."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.text.answers.detection import with_overrides
from splitserve.frontend.text.answers.formats import AnswerFormats
from splitserve.frontend.text.call_grammar.demand import CallDemand
from splitserve.frontend.text.chat.template import ChatTemplate
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.frontend.checkpoints import CHATML, write_checkpoint
from tests.frontend.http.app_fixtures import ClientFactory
from tests.frontend.http.fake_pool import FakePool, deltas_of
from tests.frontend.http.response.sse_events import events

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "hello"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": PARAMETERS}}
OTHER = {"type": "function", "function": {"name": "now"}}
ARGUMENTS = '{"city": "Bärn"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
TWO = f'Let me see.\n{CALL}\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>'


@pytest.fixture(autouse=True)
def hermes(pool: FakePool) -> None:
    pool.formats = with_overrides(AnswerFormats(), "none", "hermes")
    pool.text = TWO
    pool.max_model_len = 4096


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]},
    }


async def post(client: httpx.AsyncClient, **body: object) -> httpx.Response:
    return await client.post(PATH, json={"messages": [USER], "tools": [TOOL, OTHER]} | body)


async def choice(client: httpx.AsyncClient, **body: object) -> dict[str, Any]:
    response = await post(client, **body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


async def stream(client: httpx.AsyncClient, **body: object) -> list[dict[str, Any]]:
    response = await post(client, stream=True, **body)
    assert response.status_code == 200, response.text
    return events(response.text)


def choices_of(chunks: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    return [each for chunk in chunks for each in chunk["choices"] if each["index"] == index]


def accumulated(chunks: list[dict[str, Any]], index: int = 0) -> tuple[str, list[tuple[str, str]]]:
    """The content and the calls of one choice of a stream."""
    content, calls = "", list[tuple[str, str]]()
    for each in choices_of(chunks, index):
        content += each["delta"].get("content", "")
        for call in each["delta"].get("tool_calls", ()):
            function = call["function"]
            if "id" in call:
                assert call["index"] == len(calls)
                calls.append((function["name"], function["arguments"]))
            else:
                name, arguments = calls[call["index"]]
                calls[call["index"]] = (name, arguments + function["arguments"])
    return content, calls


async def test_calls_are_told_apart_from_content(client: httpx.AsyncClient) -> None:
    answer = await choice(client)
    calls = answer["message"]["tool_calls"]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"] == "Let me see."
    assert [call["function"] for call in calls] == [
        {"name": "weather", "arguments": ARGUMENTS},
        {"name": "now", "arguments": "{}"},
    ]
    assert {call["type"] for call in calls} == {"function"}
    assert len({call["id"] for call in calls}) == 2
    assert all(re.fullmatch(r"call_[0-9a-f]{24}", call["id"]) for call in calls)


async def test_content_is_null_beside_calls_alone(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.text = f"\n{CALL}\n"
    assert (await choice(client))["message"]["content"] is None


async def test_an_answer_without_a_call_is_as_ever(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.text = " No <tool, sorry. "
    answer = await choice(client)
    assert answer["finish_reason"] == "stop"
    assert answer["message"]["content"] == pool.text
    assert "tool_calls" not in answer["message"]


async def test_a_stream_gives_each_call_an_id_and_then_its_arguments(client: httpx.AsyncClient) -> None:
    chunks = await stream(client)
    assert accumulated(chunks) == ("Let me see.", [("weather", ARGUMENTS), ("now", "{}")])
    found = [each["delta"]["tool_calls"] for each in choices_of(chunks) if "tool_calls" in each["delta"]]
    (first,), (second,) = found[:2]
    assert first == {
        "index": 0,
        "id": first["id"],
        "type": "function",
        "function": {"name": "weather", "arguments": ""},
    }
    assert second == {"index": 0, "function": {"arguments": "{"}}
    assert choices_of(chunks)[-1]["finish_reason"] == "tool_calls"
    assert [each["finish_reason"] for each in choices_of(chunks)[:-1]] == [None] * (len(chunks) - 1)


async def test_pieces_of_any_size_stream_the_same_calls(client: httpx.AsyncClient, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, TWO, list(TWO.encode()), finish_reason="stop")

    pool.script = script
    chunks = await stream(client)
    assert accumulated(chunks) == ("Let me see.", [("weather", ARGUMENTS), ("now", "{}")])
    # Role, content, and two events per call.
    assert len(chunks) == 6
    assert choices_of(chunks)[-1]["finish_reason"] == "tool_calls"


async def test_each_of_several_choices_has_its_own_calls(client: httpx.AsyncClient) -> None:
    response = await post(client, n=2)
    messages = [each["message"] for each in response.json()["choices"]]
    assert [len(message["tool_calls"]) for message in messages] == [2, 2]
    assert len({call["id"] for message in messages for call in message["tool_calls"]}) == 4
    chunks = await stream(client, n=2)
    assert accumulated(chunks, 0) == accumulated(chunks, 1) == accumulated(await stream(client))


async def test_logprobs_and_token_ids_stay_complete(client: httpx.AsyncClient) -> None:
    fields = {"logprobs": True, "return_token_ids": True}
    whole = await choice(client, **fields)
    assert bytes(whole["token_ids"]).decode() == TWO
    chunks = choices_of(await stream(client, **fields))[1:]
    assert bytes(token for each in chunks for token in each["token_ids"] or ()).decode() == TWO
    entries = [entry for each in chunks if each["logprobs"] for entry in each["logprobs"]["content"]]
    assert entries == whole["logprobs"]["content"]


async def test_usage_counts_all_tokens(client: httpx.AsyncClient) -> None:
    usage = (await post(client)).json()["usage"]
    assert usage["completion_tokens"] == len(TWO.encode())
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}
    chunks = await stream(client, stream_options={"include_usage": True})
    assert chunks[-1]["usage"] == usage


@pytest.mark.parametrize(("reason", "stop_reason"), [("length", None), ("stop", "Bär"), ("abort", None)])
async def test_arguments_that_are_cut_off_stay_as_they_are(
    client: httpx.AsyncClient, pool: FakePool, reason: str, stop_reason: str | None
) -> None:
    text = CALL[: CALL.index("Bär")]

    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        *deltas, last = deltas_of(text, request)
        for delta in deltas:
            yield delta
        last.finish_reason, last.stop_reason = reason, stop_reason
        yield last

    pool.script = script
    answer = await choice(client)
    assert answer["finish_reason"] == reason
    assert answer["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "'}
    chunks = await stream(client)
    assert accumulated(chunks) == ("", [("weather", '{"city": "')])
    assert choices_of(chunks)[-1]["finish_reason"] == reason


async def test_a_broken_call_is_content(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.text = "<tool_call>weather of Bern</tool_call>"
    answer = await choice(client)
    assert (answer["message"]["content"], answer["finish_reason"]) == (pool.text, "stop")
    assert accumulated(await stream(client)) == (pool.text, [])


async def test_only_the_first_call_is_returned_without_parallel_calls(client: httpx.AsyncClient) -> None:
    answer = await choice(client, parallel_tool_calls=False)
    assert [call["function"]["name"] for call in answer["message"]["tool_calls"]] == ["weather"]
    assert answer["finish_reason"] == "tool_calls"
    assert accumulated(await stream(client, parallel_tool_calls=False))[1] == [("weather", ARGUMENTS)]


STRICT = {"function": {"name": "weather", "parameters": PARAMETERS, "strict": True}}


def demands(pool: FakePool) -> list[CallDemand | None]:
    return [seen.request.grammar_context.calls for seen in pool.seen]


@pytest.mark.parametrize(
    ("body", "called", "required"),
    [
        ({}, ["weather", "now"], False),
        ({"tool_choice": "required"}, ["weather", "now"], True),
        ({"tool_choice": named("now")}, ["now"], True),
        ({"tool_choice": allowed("required", "weather")}, ["weather"], True),
        ({"tool_choice": allowed("auto", "weather")}, ["weather"], False),
        ({"tools": [STRICT, OTHER]}, ["weather", "now"], False),
    ],
)
async def test_what_calls_there_may_be_goes_with_the_request(
    client: httpx.AsyncClient, pool: FakePool, body: dict, called: list[str], required: bool
) -> None:
    await choice(client, **body)
    await stream(client, **body)
    whole, streamed = demands(pool)
    assert whole == streamed
    assert whole is not None
    assert ([tool.name for tool in whole.tools], whole.required) == (called, required)
    assert whole.tool_format == "hermes"
    # What the model sees is the same whichever it may call, and so is the prefix that is cached.
    shown: Any = pool.template.calls[0][1].tools
    assert [tool["function"]["name"] for tool in shown] == ["weather", "now"]


@pytest.mark.parametrize("body", [{"tool_choice": "none", "tools": [STRICT]}, {"tools": None}, {"tools": []}])
async def test_without_tools_to_call_outputs_are_free(
    client: httpx.AsyncClient, pool: FakePool, body: dict
) -> None:
    await choice(client, **body)
    assert demands(pool) == [None]


@pytest.mark.parametrize(
    ("body", "is_optional"),
    [
        ({}, True),
        ({"tool_choice": "auto"}, True),
        ({"tools": [STRICT]}, False),
        ({"tool_choice": allowed("auto", "now")}, False),
        ({"response_format": {"type": "json_object"}}, False),
    ],
)
async def test_calls_that_are_neither_demanded_nor_strict_are_optional(
    client: httpx.AsyncClient, pool: FakePool, body: dict, is_optional: bool
) -> None:
    await choice(client, **body)
    assert [each.is_optional for each in demands(pool) if each is not None] == [is_optional]


@pytest.mark.parametrize("body", [{}, {"tool_choice": "required"}, {"tools": [STRICT]}])
async def test_there_is_no_second_call_without_parallel_calls(
    client: httpx.AsyncClient, pool: FakePool, body: dict
) -> None:
    await choice(client, **body)
    await choice(client, parallel_tool_calls=False, **body)
    assert [each.several for each in demands(pool) if each is not None] == [True, False]


async def test_calls_that_no_tag_begins_are_free_with_auto(
    make_client: ClientFactory, pool: FakePool
) -> None:
    client = make_client(tool_call_parser="json")
    await choice(client, tools=[STRICT])
    await choice(client, tools=[STRICT], tool_choice="required")
    await choice(client, tools=[STRICT], response_format={"type": "json_object"})
    free, demanded, beside = demands(pool)
    assert free is None
    assert demanded is not None
    assert beside is not None
    refused = await post(client, tool_choice=allowed("auto", "now"))
    assert refused.json()["error"]["param"] == "tool_choice.allowed_tools.mode"


async def test_reasoning_that_the_prompt_has_begun_comes_first(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    pool.formats = with_overrides(AnswerFormats(), "think", "hermes")
    await choice(client, tool_choice="required")
    assert pool.template is not None
    pool.template.opening = "<think>\n"
    pool.text = f"Hm.</think>{CALL}"
    answer = await choice(client, tool_choice="required")
    assert answer["message"]["reasoning"] == "Hm."
    contexts = [seen.request.grammar_context for seen in pool.seen]
    assert [each.reasoning.is_open for each in contexts if each.reasoning] == [False, True]


async def test_tools_and_a_response_format_go_together(client: httpx.AsyncClient, pool: FakePool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    pool.text = "{}"
    answer = await choice(client, response_format=form)
    assert (answer["message"]["content"], answer["finish_reason"]) == ("{}", "stop")
    (seen,) = pool.seen
    assert seen.request.sampling.structured_outputs is not None
    assert seen.request.grammar_context.calls is not None
    assert seen.request.grammar_context.field == "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("tool_choice", "reason"),
    [("auto", "tool_calls"), ("required", "tool_calls"), (named("weather"), "stop")],
)
async def test_a_function_that_was_named_ends_the_answer_with_stop(
    client: httpx.AsyncClient, pool: FakePool, tool_choice: object, reason: str
) -> None:
    pool.text = CALL
    answer = await choice(client, tool_choice=tool_choice)
    assert [call["function"]["name"] for call in answer["message"]["tool_calls"]] == ["weather"]
    assert answer["finish_reason"] == reason
    assert choices_of(await stream(client, tool_choice=tool_choice))[-1]["finish_reason"] == reason


async def test_the_template_gets_the_tools(client: httpx.AsyncClient, pool: FakePool) -> None:
    await choice(client, tool_choice="auto")
    assert pool.template.calls[0][1].tools == [
        TOOL,
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
    ]


async def test_the_order_of_a_schema_is_kept(client: httpx.AsyncClient, pool: FakePool) -> None:
    parameters = {"type": "object", "properties": {"b": {}, "a": {}}, "additionalProperties": False}
    await choice(client, tools=[{"function": {"name": "f", "parameters": parameters, "strict": True}}])
    shown: Any = pool.template.calls[0][1].tools
    assert json.dumps(shown[0]["function"]["parameters"]) == json.dumps(parameters)


@pytest.mark.parametrize("body", [{"tool_choice": "none"}, {"tools": []}, {"tools": None}])
async def test_without_tools_to_call_nothing_is_shown_or_parsed(
    client: httpx.AsyncClient, pool: FakePool, body: dict
) -> None:
    answer = await choice(client, **body)
    assert pool.template.calls[0][1].tools is None
    assert answer["message"]["content"] == TWO
    assert answer["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name", "invalid_value"),
        ({"tools": [OTHER, {"function": {"name": ""}}]}, "tools[1].function.name", "invalid_value"),
        ({"tools": [{"function": {"name": "n" * 65}}]}, "tools[0].function.name", "invalid_value"),
        ({"tools": [OTHER, OTHER]}, "tools[1].function.name", "invalid_value"),
        ({"tools": [{"function": {}}]}, "tools[0].function.name", "missing_required_parameter"),
        ({"tools": [{}]}, "tools[0].function", "missing_required_parameter"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "invalid_value"),
        ({"tools": [OTHER | {"type": "custom"}]}, "tools[0].type", "invalid_value"),
        (
            {"tools": [{"function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
            "invalid_value",
        ),
        ({"tools": {}}, "tools", "invalid_value"),
        ({"tools": [{"function": {"name": f"f{i}"}} for i in range(129)]}, "tools", "invalid_value"),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "invalid_value"),
        ({"tool_choice": "any"}, "tool_choice", "invalid_value"),
        ({"tool_choice": named("never")}, "tool_choice.function.name", "invalid_value"),
        ({"tool_choice": named("now"), "tools": None}, "tool_choice.function.name", "invalid_value"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function", "missing_required_parameter"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice.type", "invalid_value"),
        (
            {"tool_choice": allowed("required", "now", "never")},
            "tool_choice.allowed_tools.tools[1].function.name",
            "invalid_value",
        ),
        ({"tool_choice": "required", "use_beam_search": True, "n": 2}, "tool_choice", "invalid_value"),
        ({"tool_choice": 3}, "tool_choice", "invalid_value"),
        ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
        ({"function_call": {"name": "f"}}, "function_call", "unsupported_parameter"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "invalid_value"),
    ],
)
async def test_a_wrong_tool_is_refused_by_the_path_of_its_field(
    client: httpx.AsyncClient, pool: FakePool, body: dict, param: str, code: str
) -> None:
    response = await post(client, **body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert not pool.seen


async def test_as_many_tools_as_there_may_be(client: httpx.AsyncClient) -> None:
    tools = [{"function": {"name": f"f-{i}_X"}} for i in range(128)]
    assert (await post(client, tools=tools)).status_code == 200


async def test_a_template_without_tools_says_so(
    client: httpx.AsyncClient, pool: FakePool, tmp_path: Path
) -> None:
    template = ChatTemplate({"default": CHATML}, Tokenizer(write_checkpoint(tmp_path / "model")))
    pool.template = template  # type: ignore[assignment]
    try:
        error = (await post(client)).json()["error"]
    finally:
        template.close()
    assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
    assert error["message"] == "tools: the model's chat template knows no tools"


async def test_an_operator_may_switch_calls_off(make_client: ClientFactory, pool: FakePool) -> None:
    response = await post(make_client(tool_call_parser="none"))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"
    assert not pool.seen


async def test_an_operator_may_name_the_format(make_client: ClientFactory, pool: FakePool) -> None:
    pool.text = '[TOOL_CALLS]now[ARGS]{"a": 1}'
    answer = await choice(make_client(tool_call_parser="mistral"))
    assert answer["message"]["tool_calls"][0]["function"] == {"name": "now", "arguments": '{"a": 1}'}


async def test_special_tokens_of_the_format_are_kept_in_the_text(
    client: httpx.AsyncClient, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    special = {"<|im_end|>": 257, "<tool_call>": 258}
    monkeypatch.setattr("tests.frontend.http.fake_pool.SPECIAL_TOKENS", special)
    await choice(client)
    await choice(client, tool_choice="none")
    assert [seen.request.kept_ids for seen in pool.seen] == [frozenset([258]), frozenset()]


async def test_an_answer_with_calls_may_be_sent_back(make_client: ClientFactory, pool: FakePool) -> None:
    client = make_client(strict=True)
    message = (await choice(client))["message"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "x"} for call in message["tool_calls"]]
    response = await post(client, messages=[USER, message, *results])
    assert response.status_code == 200, response.text
    assert pool.template.calls[1][0][1]["tool_calls"] == message["tool_calls"]


async def test_tokenize_shows_the_template_the_same_tools(client: httpx.AsyncClient, pool: FakePool) -> None:
    await choice(client)
    response = await client.post("/tokenize", json={"messages": [USER], "tools": [TOOL, OTHER]})
    assert response.status_code == 200, response.text
    assert pool.template.calls[0] == pool.template.calls[1]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [USER], "tools": [OTHER, OTHER]}, "tools[1].function.name"),
        ({"prompt": "x", "tools": [OTHER]}, "tools"),
    ],
)
async def test_tokenize_refuses_wrong_tools(client: httpx.AsyncClient, body: dict, param: str) -> None:
    response = await client.post("/tokenize", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
