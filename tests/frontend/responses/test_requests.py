"""What a request of the Responses API asks of the template and the engine, and what it is refused for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from splitserve.frontend.responses.truncation import shorter_conversations
from splitserve.frontend.text.answers.detection import with_overrides
from splitserve.frontend.text.answers.formats import AnswerFormats
from splitserve.frontend.text.chat.messages import ChatMessage
from tests.frontend.http.app_fixtures import ClientFactory
from tests.frontend.http.fake_pool import FakePool

PATH = "/v1/responses"
USER = {"role": "user", "content": "hello"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "name": "weather", "description": "d", "parameters": PARAMETERS}
NOW = {"type": "function", "name": "now", "strict": True}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bern"}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "warm"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}


@pytest.fixture(autouse=True)
def with_tools(pool: FakePool) -> None:
    pool.formats = with_overrides(AnswerFormats(), "none", "hermes")


async def post(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post(PATH, json={"input": "hello"} | body)


async def rendered(client: httpx.AsyncClient, pool: FakePool, **body: Any) -> Sequence[Any]:
    """The messages that the template got."""
    response = await post(client, **body)
    assert response.status_code == 200, response.text
    assert pool.template is not None
    messages: Sequence[Any] = pool.template.calls[-1][0]
    return messages


async def refusal(client: httpx.AsyncClient, **body: Any) -> tuple[str, str, str]:
    """The field, the code and the words of a refusal."""
    response = await post(client, **body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error["param"], error["code"], error["message"]


def called(name: str = "weather", arguments: str = '{"city": "Bern"}', call_id: str = "c1") -> dict[str, Any]:
    """A tool call as templates get it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


async def test_a_text_is_a_message_behind_the_instructions(client: httpx.AsyncClient, pool: FakePool) -> None:
    assert await rendered(client, pool) == [USER]
    assert await rendered(client, pool, instructions="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        USER,
    ]


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ([USER], [USER]),
        ([USER | {"type": "message", "id": "m", "status": "completed"}], [USER]),
        ([USER | {"role": "developer"}], [USER | {"role": "system"}]),
        ([USER | {"content": [{"type": "input_text", "text": "hello"}]}], [USER]),
        ([USER | {"content": []}], [USER | {"content": ""}]),
        (
            [USER | {"content": [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]}],
            [USER | {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        ),
        (
            [
                USER,
                {
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}],
                },
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            ],
            [USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "no"}],
        ),
        (
            [USER, CALL, CALL | {"call_id": "c2"}, RESULT, RESULT | {"call_id": "c2", "output": []}],
            [
                USER,
                {"role": "assistant", "content": None, "tool_calls": [called(), called(call_id="c2")]},
                {"role": "tool", "content": "warm", "tool_call_id": "c1"},
                {"role": "tool", "content": "", "tool_call_id": "c2"},
            ],
        ),
        (
            [
                USER,
                THOUGHT | {"content": [{"type": "reasoning_text", "text": "Hm."}]},
                {"role": "assistant", "content": "Let me see."},
                CALL,
                RESULT | {"output": [{"type": "input_text", "text": "warm"}]},
                THOUGHT | {"summary": [{"type": "summary_text", "text": "So."}]},
                {"role": "assistant", "content": "It is warm."},
            ],
            [
                USER,
                {
                    "role": "assistant",
                    "content": "Let me see.",
                    "reasoning": "Hm.",
                    "reasoning_content": "Hm.",
                    "tool_calls": [called()],
                },
                {"role": "tool", "content": "warm", "tool_call_id": "c1"},
                {
                    "role": "assistant",
                    "content": "It is warm.",
                    "reasoning": "So.",
                    "reasoning_content": "So.",
                },
            ],
        ),
        (
            [USER, THOUGHT | {"encrypted_content": "x"}, USER],
            [USER, {"role": "assistant", "content": ""}, USER],
        ),
    ],
)
async def test_items_become_the_messages_of_a_chat(
    client: httpx.AsyncClient, pool: FakePool, items: list[Any], messages: list[Any]
) -> None:
    assert await rendered(client, pool, input=items) == messages


async def test_the_output_may_be_sent_back_as_it_came(make_client: ClientFactory, pool: FakePool) -> None:
    pool.formats = with_overrides(AnswerFormats(), "think", "hermes")
    pool.max_model_len = 4096
    pool.text = '<think>Hm.</think>Yes.<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    client = make_client(strict=True)
    body = (await post(client, tools=[NOW], include=["message.output_text.logprobs"])).json()
    call_id = body["output"][-1]["call_id"]
    messages = await rendered(client, pool, input=[USER, *body["output"], RESULT | {"call_id": call_id}])
    assert messages == [
        USER,
        {
            "role": "assistant",
            "content": "Yes.",
            "reasoning": "Hm.",
            "reasoning_content": "Hm.",
            "tool_calls": [called("now", "{}", call_id)],
        },
        {"role": "tool", "content": "warm", "tool_call_id": call_id},
    ]


async def test_fields_of_sampling_and_limits_reach_the_engine(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "seed": 7, "stop": ["x"]}
    fields |= {"presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.5}
    response = await post(
        client, **fields, max_output_tokens=9, timeout=5, queue_timeout=4, priority=2, cache_salt="s"
    )
    assert response.status_code == 200, response.text
    request = pool.seen[0].request
    assert {name: getattr(request.sampling, name) for name in fields} == fields | {"stop": ("x",)}
    assert request.sampling.max_tokens == 9
    assert (request.timeout_s, request.queue_timeout_s, request.priority, request.cache_salt) == (
        5,
        4,
        2,
        "s",
    )


@pytest.mark.parametrize(
    ("include", "top_logprobs", "expected"),
    [
        (None, None, None),
        (["message.output_text.logprobs"], None, 0),
        (["message.output_text.logprobs"], 3, 3),
    ],
)
async def test_logprobs_are_asked_for_if_they_are_included(
    client: httpx.AsyncClient,
    pool: FakePool,
    include: list[str] | None,
    top_logprobs: int | None,
    expected: int | None,
) -> None:
    await post(client, include=include, top_logprobs=top_logprobs)
    assert pool.seen[0].request.sampling.logprobs == expected


async def test_the_template_gets_tools_and_its_variables(client: httpx.AsyncClient, pool: FakePool) -> None:
    await rendered(client, pool, tools=[WEATHER, NOW], chat_template_kwargs={"enable_thinking": False})
    assert pool.template is not None
    options = pool.template.calls[-1][1]
    assert options.tools is not None
    assert [tool["function"]["name"] for tool in options.tools] == ["weather", "now"]  # type: ignore[index,call-overload]
    assert options.variables == {"enable_thinking": False}


async def test_an_effort_is_told_to_the_template(client: httpx.AsyncClient, pool: FakePool) -> None:
    await rendered(client, pool, reasoning={"effort": "minimal"})
    assert pool.template is not None
    assert pool.template.calls[-1][1].variables == {
        "reasoning_effort": "minimal",
        "enable_thinking": True,
        "thinking": True,
    }
    found, code, message = await refusal(client, reasoning={"effort": "most"})
    assert (found, code) == ("reasoning.effort", "invalid_value")
    assert "'most'" in message


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("auto", ["weather", "now"]),
        ("none", None),
        ("required", ["weather", "now"]),
        ({"type": "function", "name": "now"}, ["weather", "now"]),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "now"}]},
            ["weather", "now"],
        ),
    ],
    ids=["auto", "none", "required", "named", "allowed"],
)
async def test_the_model_sees_the_tools_that_it_may_use(
    client: httpx.AsyncClient, pool: FakePool, choice: Any, names: list[str] | None
) -> None:
    response = await post(client, tools=[WEATHER, NOW], tool_choice=choice)
    assert response.status_code == 200, response.text
    assert (response.json()["tool_choice"], len(response.json()["tools"])) == (choice, 2)
    assert pool.template is not None
    tools = pool.template.calls[-1][1].tools
    assert (None if tools is None else [tool["function"]["name"] for tool in tools]) == names  # type: ignore[index,call-overload]


@pytest.mark.parametrize(
    ("choice", "tools", "required"),
    [
        ("auto", ["weather", "now"], False),
        ("required", ["weather", "now"], True),
        ({"type": "function", "name": "now"}, ["now"], True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [NOW]}, ["now"], False),
        ({"type": "allowed_tools", "mode": "required", "tools": [WEATHER]}, ["weather"], True),
    ],
    ids=str,
)
async def test_the_answer_is_held_to_the_tools_that_may_be_called(
    client: httpx.AsyncClient, pool: FakePool, choice: Any, tools: list[str], required: bool
) -> None:
    await post(client, tools=[WEATHER, NOW], tool_choice=choice)
    demand = pool.seen[0].request.grammar_context.calls
    assert demand is not None
    assert ([tool.name for tool in demand.tools], demand.required) == (tools, required)


async def test_the_text_has_the_form_that_was_asked_for(client: httpx.AsyncClient, pool: FakePool) -> None:
    form = {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}
    response = await post(client, text={"format": form})
    assert response.json()["text"]["format"] == form
    asked = pool.seen[0].request.sampling.structured_outputs
    assert asked is not None
    assert asked.json == form["schema"]


STORE = "no response store"


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"store": True}, "store", STORE),
        ({"previous_response_id": "resp_1"}, "previous_response_id", STORE),
        ({"conversation": "conv_1"}, "conversation", "use previous_response_id"),
        ({"conversation": {"id": "conv_1"}}, "conversation", "use previous_response_id"),
        ({"background": True}, "background", STORE),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type", "use previous_response_id"),
        ({"prompt": {"id": "p"}}, "prompt", "prompts kept on the server"),
        ({"input": [USER, {"type": "computer_call"}]}, "input[1].type", "'computer_call'"),
        (
            {"input": [USER | {"content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "'input_image'",
        ),
        (
            {"input": [RESULT | {"output": [{"type": "input_file"}]}]},
            "input[0].output[0].type",
            "'input_file'",
        ),
        (
            {"input": [THOUGHT | {"content": [{"type": "input_text", "text": "x"}]}]},
            "input[0].content[0].type",
            "reasoning_text",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'web_search'"),
        ({"tools": [WEATHER, {"type": "mcp", "server_url": "x"}]}, "tools[1].type", "'mcp'"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type", "'web_search'"),
        ({"n": 2}, "n", "null or 1"),
        ({"use_beam_search": True}, "use_beam_search", "null"),
        ({"messages": [USER]}, "messages", "null"),
        ({"context_management": [{"type": "compaction"}]}, "context_management", "null or []"),
    ],
    ids=str,
)
async def test_what_is_not_served_is_refused_by_name(
    client: httpx.AsyncClient, body: dict[str, Any], param: str, words: str
) -> None:
    found, code, message = await refusal(client, **body)
    assert (found, code) == (param, "unsupported_parameter")
    assert words in message


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [RESULT]}, "input[0].call_id"),
        ({"input": [USER | {"content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 1000}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"stream_options": {}}, "stream_options"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [WEATHER | {"name": "no spaces"}]}, "tools[0].name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [NOW]}}, "tool_choice.mode"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
            "tool_choice.tools[0].type",
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [NOW | {"name": "x"}]}},
            "tool_choice.tools[0].name",
        ),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata[...]"),
        ({"metadata": {"k": 1}}, "metadata[...]"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"truncation": "always"}, "truncation"),
        ({"timeout": 0}, "timeout"),
    ],
    ids=str,
)
async def test_a_wrong_field_is_named(client: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    found, _, message = await refusal(client, **body)
    assert found == param
    assert "max_completion_tokens" not in message
    assert "function.name" not in message


async def test_an_input_that_is_too_long_is_said_to_be(client: httpx.AsyncClient) -> None:
    _, code, message = await refusal(client, input="x" * 1000)
    assert code == "context_length_exceeded"
    assert "maximum context length is 256 tokens" in message


async def test_another_model_is_not_found(client: httpx.AsyncClient) -> None:
    response = await post(client, model="another")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    "body",
    [
        {"store": False, "background": False, "previous_response_id": None, "conversation": None},
        {"service_tier": "auto", "user": "u", "safety_identifier": "s", "prompt_cache_key": "k"},
        {"prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "implicit"}, "max_tool_calls": 1},
        {"include": ["reasoning.encrypted_content"], "reasoning": {"effort": "none", "summary": "auto"}},
        {"text": {"format": {"type": "text"}, "verbosity": "medium"}, "truncation": "disabled"},
        {"tools": [], "tool_choice": "auto", "stream": None, "stream_options": None, "metadata": {}},
    ],
    ids=str,
)
async def test_what_changes_nothing_is_taken_also_where_all_is_checked(
    make_client: ClientFactory, body: dict[str, Any]
) -> None:
    response = await post(make_client(strict=True), **body)
    assert response.status_code == 200, response.text


async def test_unknown_fields_are_ignored_or_refused(make_client: ClientFactory) -> None:
    unknown = {"input": [USER | {"nobody": 1}]}
    assert (await post(make_client(), **unknown)).status_code == 200
    param, code, _ = await refusal(make_client(strict=True), **unknown)
    assert (param, code) == ("input[0].nobody", "unknown_parameter")


async def test_the_verbosity_that_is_ignored_is_logged(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "frontend")
    await post(client, text={"verbosity": "low"})
    assert "ignored=text.verbosity" in caplog.text


TURNS = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "a" * 90},
    CALL,
    RESULT,
    {"role": "user", "content": "b" * 90},
    {"role": "assistant", "content": "c" * 20},
    {"role": "user", "content": "d"},
]


@pytest.mark.parametrize(
    ("max_output_tokens", "num_left"), [(None, 7), (20, 4), (150, 2)], ids=["all", "two turns", "one turn"]
)
async def test_the_oldest_turns_are_left_out_until_the_rest_fits(
    client: httpx.AsyncClient, pool: FakePool, max_output_tokens: int | None, num_left: int
) -> None:
    pool.max_model_len = 256 if max_output_tokens else 1024
    fields = {"input": TURNS, "max_output_tokens": max_output_tokens, "truncation": "auto"}
    response = await post(client, **fields)
    assert response.status_code == 200, response.text
    expected = [
        f"{message['role']}: {message['content']}"
        for message in TURNS[7 - num_left + 1 :]
        if "role" in message
    ]
    prompt = bytes(pool.seen[0].request.prompt_token_ids).decode()
    assert prompt.startswith("system: Be brief.\n")
    if max_output_tokens:
        assert prompt == "\n".join(["system: Be brief.", *expected, "assistant: "])


async def test_nothing_is_left_out_unless_it_is_asked_for(client: httpx.AsyncClient) -> None:
    fields: dict[str, Any] = {"input": TURNS, "max_output_tokens": 150}
    assert (await refusal(client, **fields))[1] == "context_length_exceeded"
    last = [USER | {"content": "x" * 300}]
    assert (await refusal(client, input=TURNS + last, truncation="auto"))[1] == "context_length_exceeded"


def test_shorter_conversations_begin_with_a_user() -> None:
    roles = ["system", "user", "assistant", "tool", "system", "user", "assistant", "user"]
    messages = [ChatMessage(role=role, content=str(i)) for i, role in enumerate(roles)]
    found = [[message.content for message in each] for each in shorter_conversations(messages)]
    assert found == [["0", "5", "6", "7"], ["0", "7"]]
    assert shorter_conversations(messages[:3]) == []
