"""What a request of the Messages API becomes: messages, tools, thinking, sampling; what is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from splitserve.engine_core.structured_outputs import StructuredOutputs
from splitserve.frontend.text.answers.detection import with_overrides
from splitserve.frontend.text.answers.formats import AnswerFormats, ReasoningFormat
from tests.frontend.http.app_fixtures import ClientFactory
from tests.frontend.http.fake_pool import FakePool

PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"
USER = {"role": "user", "content": "hello"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "weather", "description": "d", "input_schema": SCHEMA}
USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}}
# Of the fake tokenizer.
TOKENS = ReasoningFormat("tokens", "<|256|>", "<|257|>")
CACHED = {"cache_control": {"type": "ephemeral"}}


@pytest.fixture(autouse=True)
def hermes(pool: FakePool) -> None:
    pool.formats = with_overrides(AnswerFormats(), "none", "hermes")
    pool.max_model_len = 4096


def body(**fields: Any) -> dict[str, Any]:
    return {"max_tokens": 9, "messages": [USER]} | fields


async def rendered(client: httpx.AsyncClient, pool: FakePool, **fields: Any) -> tuple[Any, Any]:
    """What the template was given: messages and options."""
    response = await client.post(PATH, json=body(**fields))
    assert response.status_code == 200, response.text
    assert pool.template is not None
    return pool.template.calls[-1]


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [USER]),
        ({"system": "Be brief."}, [{"role": "system", "content": "Be brief."}, USER]),
        ({"system": [text("Be brief.", **CACHED)]}, [{"role": "system", "content": "Be brief."}, USER]),
        (
            {"system": [text("a"), text("b")]},
            [{"role": "system", "content": [text("a"), text("b")]}, USER],
        ),
        ({"system": ""}, [USER]),
        ({"messages": [{"role": "user", "content": [text("hello", **CACHED)]}]}, [USER]),
        ({"messages": [{"role": "user", "content": []}]}, [{"role": "user", "content": ""}]),
        ({"messages": [USER, USER]}, [{"role": "user", "content": [text("hello"), text("hello")]}]),
    ],
    ids=str,
)
async def test_text_and_system(
    client: httpx.AsyncClient, pool: FakePool, fields: dict, expected: Any
) -> None:
    assert (await rendered(client, pool, **fields))[0] == expected


async def test_a_conversation_with_tools_and_thinking(client: httpx.AsyncClient, pool: FakePool) -> None:
    messages = [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                text("Let me see.", citations=None),
                USE,
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "warm", **CACHED},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": [text("no")], "is_error": True},
                {"type": "tool_result", "tool_use_id": "toolu_3"},
                text("And now?"),
            ],
        },
    ]
    found, options = await rendered(client, pool, messages=messages, tools=[TOOL | {"type": "custom"}])
    assert found == [
        USER,
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning": "Hm.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {
                    "id": "toolu_1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": {"city": "Bern"}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "warm"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: no"},
        {"role": "tool", "tool_call_id": "toolu_3", "content": ""},
        {"role": "user", "content": "And now?"},
    ]
    assert options.tools == [
        {"type": "function", "function": {"name": "weather", "description": "d", "parameters": SCHEMA}}
    ]
    assert (options.add_generation_prompt, options.continue_final_message) == (True, False)


async def test_content_is_null_beside_tool_use_alone(client: httpx.AsyncClient, pool: FakePool) -> None:
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}]}
    messages = [USER, {"role": "assistant", "content": [USE]}, result]
    assert (await rendered(client, pool, messages=messages))[0][1]["content"] is None


async def test_a_last_turn_of_the_assistant_is_continued(client: httpx.AsyncClient, pool: FakePool) -> None:
    _, options = await rendered(client, pool, messages=[USER, {"role": "assistant", "content": "It is"}])
    assert (options.add_generation_prompt, options.continue_final_message) == (False, True)


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (None, None),
        ({"type": "enabled", "budget_tokens": 1024}, True),
        ({"type": "adaptive"}, True),
        ({"type": "disabled"}, False),
    ],
)
async def test_thinking_is_a_switch_of_the_template(
    client: httpx.AsyncClient, pool: FakePool, thinking: Any, expected: bool | None
) -> None:
    _, options = await rendered(client, pool, thinking=thinking)
    variables = None if expected is None else {"enable_thinking": expected, "thinking": expected}
    assert options.variables == variables


@pytest.mark.parametrize(
    ("formats", "thinking", "expected"),
    [
        (AnswerFormats(TOKENS), {"type": "enabled", "budget_tokens": 1024}, 1024),
        (AnswerFormats(TOKENS), {"type": "adaptive", "budget_tokens": 1024}, None),
        (AnswerFormats(TOKENS), {"type": "disabled"}, None),
        # It never thinks, so it keeps any budget.
        (AnswerFormats(), {"type": "enabled", "budget_tokens": 1024}, None),
    ],
)
async def test_thinking_may_have_a_budget(
    client: httpx.AsyncClient, pool: FakePool, formats: AnswerFormats, thinking: Any, expected: int | None
) -> None:
    pool.formats = formats
    await rendered(client, pool, thinking=thinking)
    assert pool.seen[-1].request.sampling.thinking_token_budget == expected


async def test_an_effort_is_told_to_the_template(client: httpx.AsyncClient, pool: FakePool) -> None:
    _, options = await rendered(client, pool, output_config={"effort": "max"})
    assert options.variables == {"reasoning_effort": "max", "enable_thinking": True, "thinking": True}
    _, options = await rendered(client, pool, output_config={"effort": "low"}, thinking={"type": "disabled"})
    assert options.variables == {"reasoning_effort": "low", "enable_thinking": False, "thinking": False}


async def test_sampling(client: httpx.AsyncClient, pool: FakePool) -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "stop_sequences": ["a", "b"]}
    await rendered(client, pool, **fields, metadata={"user_id": "u"}, service_tier="auto", **CACHED)
    sampling = pool.seen[0].request.sampling
    found = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.stop, sampling.max_tokens)
    assert found == (0.5, 0.9, 7, ("a", "b"), 9)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_format_of_the_output_is_that_of_a_chat(
    client: httpx.AsyncClient, pool: FakePool, stream: bool
) -> None:
    await rendered(client, pool, output_config={"format": FORMAT, "effort": None}, stream=stream)
    (seen,) = pool.seen
    assert seen.request.sampling.structured_outputs == StructuredOutputs(json=SCHEMA)


@pytest.mark.parametrize("config", [None, {}, {"format": None}], ids=str)
async def test_without_a_format_the_output_is_free(
    client: httpx.AsyncClient, pool: FakePool, config: Any
) -> None:
    await rendered(client, pool, output_config=config)
    assert pool.seen[0].request.sampling.structured_outputs is None


@pytest.mark.parametrize("choice", [{"type": "none"}, {"type": "auto"}, None])
async def test_tools_are_shown_unless_none_may_be_used(
    client: httpx.AsyncClient, pool: FakePool, choice: Any
) -> None:
    _, options = await rendered(client, pool, tools=[TOOL], tool_choice=choice)
    assert (options.tools is None) == (choice == {"type": "none"})


@pytest.mark.parametrize(
    ("choice", "required"),
    [({"type": "auto"}, False), ({"type": "any"}, True), ({"type": "tool", "name": "weather"}, True)],
    ids=str,
)
async def test_the_answer_is_held_to_the_choice(
    client: httpx.AsyncClient, pool: FakePool, choice: Any, required: bool
) -> None:
    one = {"disable_parallel_tool_use": True}
    for fields in (choice, choice | one):
        await rendered(client, pool, tools=[TOOL], tool_choice=fields)
    demands = [seen.request.grammar_context.calls for seen in pool.seen]
    assert [each.required for each in demands if each] == [required, required]
    is_named = choice["type"] == "tool"
    assert [each.several for each in demands if each] == [not is_named, False]


def message(*blocks: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "content": "x"}, {"role": role, "content": [*blocks]}]}


FORMAT = {"type": "json_schema", "schema": SCHEMA}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://x"}}
RESULT = {"type": "tool_result", "tool_use_id": "t"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**6}, "maximum context length"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        (message(IMAGE), "messages[2].content[0].type: 'image' is not supported"),
        (message(text("a"), {"type": "document"}), "messages[2].content[1].type: 'document'"),
        (message(RESULT | {"content": [IMAGE]}), "messages[2].content[0].content[0].type: 'image'"),
        (
            message(RESULT | {"content": [{"type": "text"}]}),
            "messages[2].content[0].content[0].text is missing",
        ),
        (message(USE), "messages[2].content[0].type: 'tool_use'"),
        (message(RESULT, role="assistant"), "messages[2].content[0].type: 'tool_result'"),
        (message({"type": "text"}), "messages[2].content[0].text is missing"),
        (message({"type": "tool_result"}), "messages[2].content[0].tool_use_id is missing"),
        (
            message({"type": "tool_use", "id": "t"}, role="assistant"),
            "messages[2].content[0].name is missing",
        ),
        (message(USE, role="assistant"), "messages[2].content: a tool_use needs a tool_result"),
        ({"system": [IMAGE]}, "system[0].type: 'image'"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "tools[0].type: 'web_search_20250305'",
        ),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema is missing"),
        ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name must be 1 to 64"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name: two tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name is missing"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name: 'x' is none"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: a call is demanded"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"temperature": 3}, "temperature"),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ({"output_config": {"effort": "none"}}, "output_config.effort"),
        ({"output_config": {"task_budget": 9}}, "output_config: object contains unknown field task_budget"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_config": {"format": {"type": "json_object"}}}, "output_config.format.type"),
        ({"output_format": FORMAT}, "output_format: it is not supported"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"container": "x"}, "container"),
        ({"compaction": {}}, "compaction"),
        ({"thread": {"type": "create"}}, "thread: keeping a conversation between its requests"),
        ({"seed": 1}, "seed"),
        ({"stop": ["x"]}, "stop"),
        ({"guided_regex": "x"}, "guided_regex"),
    ],
    ids=str,
)
async def test_what_is_wrong_or_not_served_is_named(
    client: httpx.AsyncClient, pool: FakePool, fields: dict, named: str
) -> None:
    response = await client.post(PATH, json=body(**fields))
    assert response.status_code == 400
    found = response.json()
    assert (found["type"], found["error"]["type"]) == ("error", "invalid_request_error")
    assert named in found["error"]["message"]
    assert found["request_id"] == response.headers["request-id"]
    assert not pool.seen


async def test_an_sdk_learns_that_there_are_no_threads(client: httpx.AsyncClient) -> None:
    for path in (PATH, COUNT_PATH):
        response = await client.post(path, json=body(thread={"type": "create"}))
        details = response.json()["error"]["details"]
        assert (response.status_code, details) == (400, {"error_code": "thread_unsupported_request"})


async def test_max_tokens_is_required(client: httpx.AsyncClient) -> None:
    response = await client.post(PATH, json={"messages": [USER]})
    assert response.json()["error"]["message"] == "max_tokens is missing"


async def test_unknown_fields_are_passed_over_unless_the_server_is_strict(
    make_client: ClientFactory, client: httpx.AsyncClient
) -> None:
    unknown = body(messages=[USER | {"weight": 1}])
    assert (await client.post(PATH, json=unknown)).status_code == 200
    strict = make_client(strict=True)
    response = await strict.post(PATH, json=unknown)
    assert response.json()["error"]["message"] == "messages[0].weight is not a known field"
    known = body(metadata={}, service_tier="auto", system=[text("a", citations=None, **CACHED)])
    known |= {"thread": None, "fallbacks": "default"}
    assert (await strict.post(PATH, json=known)).status_code == 200
    image = await strict.post(PATH, json=body(messages=[{"role": "user", "content": [IMAGE]}]))
    assert "'image' is not supported" in image.json()["error"]["message"]


async def test_counting_encodes_the_same_prompt(
    make_client: ClientFactory, client: httpx.AsyncClient, pool: FakePool
) -> None:
    fields = {"system": "Be brief.", "tools": [TOOL], "thinking": {"type": "disabled"}}
    response = await client.post(PATH, json=body(**fields))
    counted = await make_client(strict=True).post(COUNT_PATH, json=body(**fields))
    assert counted.json() == {"input_tokens": response.json()["usage"]["input_tokens"]}
    assert pool.template is not None
    assert pool.template.calls[0] == pool.template.calls[1]
    assert len(pool.seen) == 1
    refused = await client.post(COUNT_PATH, json={"messages": [{"role": "user", "content": [IMAGE]}]})
    assert (refused.status_code, refused.json()["type"]) == (400, "error")


@pytest.mark.parametrize(
    ("changes", "request_fields", "status", "kind"),
    [
        ({}, {"json": body(model="nope")}, 404, "not_found_error"),
        (
            {},
            {"content": b"{", "headers": {"content-type": "application/json"}},
            400,
            "invalid_request_error",
        ),
        ({}, {"content": b"x"}, 415, "invalid_request_error"),
        ({"max_body_bytes": 1024}, {"json": body(system="x" * 2000)}, 413, "request_too_large"),
        ({"api_key_hashes": ("0" * 64,)}, {"json": body()}, 401, "authentication_error"),
        ({"root_path": "/llm"}, {"json": body(model="nope")}, 404, "not_found_error"),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", [PATH, COUNT_PATH])
async def test_every_layer_words_its_errors_alike(
    make_client: ClientFactory, path: str, changes: dict, request_fields: dict, status: int, kind: str
) -> None:
    prefix = changes.get("root_path", "")
    response = await make_client(**changes).post(prefix + path, **request_fields)
    found = response.json()
    assert (response.status_code, found["type"], found["error"]["type"]) == (status, "error", kind)
    assert found["error"].keys() == {"type", "message"}
    assert found["request_id"] == response.headers["request-id"]


async def test_a_wrong_method_is_worded_alike(client: httpx.AsyncClient) -> None:
    response = await client.get(PATH)
    assert (response.status_code, response.json()["error"]["type"]) == (405, "invalid_request_error")
    assert "type" not in (await client.get("/v1/chat/completions")).json()


async def test_without_an_engine_it_is_overloaded(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.state = "loading"
    response = await client.post(PATH, json=body())
    assert (response.status_code, response.json()["error"]["type"]) == (503, "overloaded_error")
    assert "retry-after" in response.headers
