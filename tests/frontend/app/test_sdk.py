"""The openai package against a real server on loopback: it must understand every answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import openai
import pytest

from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.http.api_keys import hash_key
from splitserve.frontend.text.answers.detection import with_overrides
from splitserve.frontend.text.answers.formats import AnswerFormats
from tests.frontend.http.app_fixtures import ServerFactory
from tests.frontend.http.fake_pool import FakePool, turns

KEY = "sk-test-key"
MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]


@pytest.fixture
async def sdk(make_server: ServerFactory) -> AsyncGenerator[openai.AsyncOpenAI, None]:
    url = await make_server(api_key_hashes=(hash_key(KEY),))
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


async def test_chat(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(
        model="org/demo",
        messages=MESSAGES,
        n=2,
        logprobs=True,
        top_logprobs=2,
        seed=-7,
        user="me",
        stop=["x"],
    )
    assert [choice.message.content for choice in answer.choices] == ["Hi there"] * 2
    assert answer.choices[0].logprobs.content[0].top_logprobs[1].token == "I"
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.choices[0].message.tool_calls is None


async def test_fields_of_vllm_that_nobody_asked_for_are_null_attributes(sdk: openai.AsyncOpenAI) -> None:
    chat = await sdk.chat.completions.create(model="org/demo", messages=MESSAGES)
    text = await sdk.completions.create(model="org/demo", prompt="a")
    (answer,), (completion,) = chat.choices, text.choices
    found = [
        *(chat.prompt_logprobs, chat.prompt_token_ids, chat.prompt_text, chat.service_tier),
        *(chat.kv_transfer_params, chat.ec_transfer_params),
        *(answer.stop_reason, answer.token_ids, answer.routed_experts),
        *(answer.message.reasoning, answer.message.reasoning_content, answer.message.refusal),
        *(answer.message.annotations, answer.message.audio, answer.message.function_call),
        *(answer.message.tool_calls,),
        *(text.service_tier, text.kv_transfer_params, text.ec_transfer_params),
        *(completion.stop_reason, completion.token_ids, completion.routed_experts),
        *(completion.prompt_logprobs, completion.prompt_token_ids),
    ]
    assert found == [None] * len(found)


async def test_an_answer_may_be_sent_back_whole_as_history(sdk: openai.AsyncOpenAI, pool: FakePool) -> None:
    answer = (await sdk.chat.completions.create(model="org/demo", messages=MESSAGES)).choices[0].message
    history = [*MESSAGES, answer.model_dump(), {"role": "user", "content": "more"}]
    await sdk.chat.completions.create(model="org/demo", messages=history)
    assert pool.template.calls[1][0][1] == {"role": "assistant", "content": "Hi there"}


async def test_chat_stream(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model="org/demo", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hi there"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + 8


async def test_the_chat_stream_helper_rebuilds_the_answer(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.chat.completions.stream(model="org/demo", messages=MESSAGES) as stream:
        answer = await stream.get_final_completion()
    assert answer.choices[0].message.content == "Hi there"


def weather_call(pool: FakePool) -> list[dict]:
    """Have the model call a tool; returns the tools."""
    pool.formats = with_overrides(AnswerFormats(), "think", "hermes")
    pool.text = (
        '<think>\nLook.\n</think>\n\nOne moment.\n<tool_call>\n{"name": "weather", "arguments": '
        '{"city": "Bern"}}\n</tool_call>'
    )
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    return [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]


async def test_tool_calls(sdk: openai.AsyncOpenAI, pool: FakePool) -> None:
    tools = weather_call(pool)
    answer = await sdk.chat.completions.create(model="org/demo", messages=MESSAGES, tools=tools)
    (choice,), details = answer.choices, answer.usage.completion_tokens_details
    assert (choice.message.content, choice.message.reasoning) == ("One moment.", "Look.")
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Bern"}')
    assert details.reasoning_tokens == len("Look.")


async def test_the_chat_stream_helper_rebuilds_tool_calls(sdk: openai.AsyncOpenAI, pool: FakePool) -> None:
    tools, arguments = weather_call(pool), ""
    async with sdk.chat.completions.stream(model="org/demo", messages=MESSAGES, tools=tools) as stream:
        async for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                arguments += event.arguments_delta
        answer = await stream.get_final_completion()
    (call,) = answer.choices[0].message.tool_calls
    assert arguments == call.function.arguments == '{"city": "Bern"}'
    assert (call.type, call.function.name) == ("function", "weather")
    assert call.id.startswith("call_")
    assert answer.choices[0].message.content == "One moment."
    assert answer.choices[0].finish_reason == "tool_calls"


async def test_completions(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.completions.create(
        model="org/demo",
        prompt=["a", "b"],
        echo=True,
        logprobs=1,
        logit_bias={"5": 1},
        extra_body={"top_k": 3},
    )
    assert [choice.text for choice in answer.choices] == ["aHi there", "bHi there"]
    assert answer.choices[0].logprobs.token_logprobs[0] is None
    stream = await sdk.completions.create(model="org/demo", prompt=[1, 2], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hi there"


async def test_models(sdk: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in sdk.models.list()] == ["org/demo", "alias"]
    assert (await sdk.models.retrieve("org/demo")).owned_by == "splitserve"


async def test_each_error_becomes_the_sdks_own_exception(sdk: openai.AsyncOpenAI, pool: FakePool) -> None:
    async def fails(expected: type[openai.APIStatusError], **body: object) -> openai.APIStatusError:
        with pytest.raises(expected) as caught:
            await sdk.chat.completions.create(**({"model": "org/demo", "messages": MESSAGES} | body))
        return caught.value

    error = await fails(openai.BadRequestError, temperature=9)
    assert (error.param, error.code, error.type) == ("temperature", "invalid_value", "invalid_request_error")
    assert (await fails(openai.NotFoundError, model="none")).code == "model_not_found"
    pool.state = "lost"
    assert (await fails(openai.InternalServerError)).status_code == 503
    with pytest.raises(openai.AuthenticationError):
        await sdk.with_options(api_key="wrong-key").models.list()


async def test_an_error_in_a_stream_is_raised_by_the_sdk(sdk: openai.AsyncOpenAI, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "a", [97])
        await turns()
        raise RuntimeError("boom")

    pool.script = script
    stream = await sdk.chat.completions.create(model="org/demo", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="Internal server error"):
        async for _ in stream:
            pass


async def test_leaving_a_stream_early_aborts_it_on_the_engine(
    sdk: openai.AsyncOpenAI, pool: FakePool
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "a", [97])
        await asyncio.Event().wait()

    pool.script = script
    stream = await sdk.chat.completions.create(model="org/demo", messages=MESSAGES, stream=True)
    await anext(aiter(stream))
    await stream.close()
    async with asyncio.timeout(30):
        await pool.num_closed.wait()
    assert len(pool.closed) == 1
