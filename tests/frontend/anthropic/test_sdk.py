"""The anthropic package against a real server on loopback: it must understand thinking, tools and errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anthropic
import pytest

from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.http.api_keys import hash_key
from splitserve.frontend.text.answers.detection import with_overrides
from splitserve.frontend.text.answers.formats import AnswerFormats
from tests.frontend.http.app_fixtures import ServerFactory
from tests.frontend.http.fake_pool import FakePool, turns

KEY = "sk-test-key"
USER = {"role": "user", "content": "hello"}
TOOL = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bärn"}}\n</tool_call>'


@pytest.fixture
async def sdk(make_server: ServerFactory) -> AsyncGenerator[anthropic.AsyncAnthropic, None]:
    url = await make_server(api_key_hashes=(hash_key(KEY),))
    async with anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
def thinks_and_calls(pool: FakePool) -> None:
    pool.formats = with_overrides(AnswerFormats(), "think", "hermes")
    pool.text = f"<think>\nHm.\n</think>\n\nLet me see.\n{CALL}"
    pool.max_model_len = 4096


async def test_thinking_and_a_call_and_its_result_sent_back(
    sdk: anthropic.AsyncAnthropic, pool: FakePool
) -> None:
    message = await sdk.messages.create(model="org/demo", max_tokens=200, messages=[USER], tools=[TOOL])
    thinking, text, call = message.content
    assert isinstance(thinking, anthropic.types.ThinkingBlock)
    assert isinstance(text, anthropic.types.TextBlock)
    assert isinstance(call, anthropic.types.ToolUseBlock)
    assert (thinking.thinking, text.text) == ("Hm.", "Let me see.")
    assert (call.name, call.input, message.stop_reason) == ("weather", {"city": "Bärn"}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "warm"}
    await sdk.messages.create(
        model="org/demo",
        max_tokens=200,
        messages=[
            USER,
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": [result]},
        ],
        tools=[TOOL],
    )
    assert pool.template is not None
    _, said, answered = pool.template.calls[-1][0]
    assert (said["content"], said["reasoning_content"]) == ("Let me see.", "Hm.")
    assert said["tool_calls"][0]["id"] == answered["tool_call_id"] == call.id


async def test_a_stream_adds_up_to_the_same_blocks(sdk: anthropic.AsyncAnthropic) -> None:
    async with sdk.messages.stream(model="org/demo", max_tokens=200, messages=[USER], tools=[TOOL]) as stream:
        kinds = [event.type async for event in stream]
        message = await stream.get_final_message()
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[-1].input == {"city": "Bärn"}
    assert message.stop_reason == "tool_use"
    assert {"thinking", "signature", "text", "input_json"} <= set(kinds)


async def test_an_error_within_a_stream_is_raised(sdk: anthropic.AsyncAnthropic, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "a", [97])
        await turns()
        raise RuntimeError("secret")

    pool.script = script
    with pytest.raises(anthropic.APIStatusError, match="Internal server error"):
        async with sdk.messages.stream(model="org/demo", max_tokens=9, messages=[USER]) as stream:
            await stream.get_final_message()


async def test_an_engine_that_is_away_may_be_tried_again(
    sdk: anthropic.AsyncAnthropic, pool: FakePool
) -> None:
    pool.state = "loading"
    with pytest.raises(anthropic.InternalServerError) as caught:
        await sdk.messages.create(model="org/demo", max_tokens=9, messages=[USER])
    assert caught.value.status_code == 503
