"""LiteLLM over OpenAI's API and Anthropic's: tools, formats of the answer, streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.clients.weather import COUNT, MAX_TOKENS, TOOL, USER, Note, Place, get_weather
from tests.system.processes import Server

pytestmark = [
    pytest.mark.system,
    # Of LiteLLM's own types.
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class"),
]

NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module")
def litellm() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patched:
        # Otherwise it asks the Internet for prices when it is imported.
        patched.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        yield pytest.importorskip("litellm")


@pytest.fixture(params=["openai", "anthropic"])
def asked(server: Server, model: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a request says of the server, by the API."""
    base = {"openai": server.base_url, "anthropic": server.url}[request.param]
    return {
        "model": f"{request.param}/{model}",
        "api_base": base,
        "api_key": "unused",
        "max_retries": 0,
        "max_tokens": MAX_TOKENS,
    }


@pytest.mark.parametrize("choice", ["required", NAMED], ids=str)
def test_a_demanded_call_is_run_and_its_result_answered(
    litellm: Any, asked: dict[str, Any], choice: Any
) -> None:
    tools = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
    first = litellm.completion(**asked, messages=[USER], **tools).choices[0]
    (call,) = first.message.tool_calls
    assert first.finish_reason == "tool_calls"
    content = get_weather(**json.loads(call.function.arguments))
    result = {"role": "tool", "tool_call_id": call.id, "content": content}
    conversation = [USER, first.message, result]
    second = litellm.completion(**asked, messages=conversation, tools=[TOOL], tool_choice="none").choices[0]
    assert (second.message.tool_calls, second.message.content is None) == (None, False)


def test_streamed_calls_add_up(litellm: Any, asked: dict[str, Any]) -> None:
    tools = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    usage = {"include_usage": True}
    chunks = litellm.completion(**asked, messages=[USER], **tools, stream=True, stream_options=usage)
    whole = litellm.stream_chunk_builder(list(chunks), messages=[USER])
    (call,) = whole.choices[0].message.tool_calls
    assert get_weather(**json.loads(call.function.arguments))
    assert whole.choices[0].finish_reason == "tool_calls"
    assert whole.usage.completion_tokens > 0


def test_streamed_text_is_the_text_at_once(litellm: Any, asked: dict[str, Any]) -> None:
    conversation = [{"role": "user", "content": COUNT}]
    asked["temperature"] = 0
    chunks = list(litellm.completion(**asked, messages=conversation, stream=True))
    whole = litellm.completion(**asked, messages=conversation)
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    )


def test_an_answer_is_of_its_model(litellm: Any, asked: dict[str, Any]) -> None:
    answer = litellm.completion(**asked, messages=[USER], response_format=Place)
    assert Place.model_validate_json(answer.choices[0].message.content)
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("asked", ["openai"], indirect=True)
def test_json_mode_gives_an_object(litellm: Any, asked: dict[str, Any], empty_object: dict[str, int]) -> None:
    answer = litellm.completion(
        **asked, messages=[USER], response_format={"type": "json_object"}, logit_bias=empty_object
    )
    assert Note.model_validate_json(answer.choices[0].message.content) == Note()


def test_a_response_is_completed(litellm: Any, asked: dict[str, Any]) -> None:
    asked["max_output_tokens"] = asked.pop("max_tokens")
    response = litellm.responses(**asked, input=COUNT)
    assert response.output[0].content[0].text


async def test_it_works_asynchronously(litellm: Any, asked: dict[str, Any]) -> None:
    answer = await litellm.acompletion(**asked, messages=[USER], response_format=Place)
    assert Place.model_validate_json(answer.choices[0].message.content)
