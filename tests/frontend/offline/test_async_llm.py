"""AsyncLLM over a real engine-core with made-up tokens: streams, many loops, abort, close."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from splitserve import LLM, AsyncLLM, SamplingParams
from splitserve.engine_core.errors import ConfigError, InvalidRequestError
from splitserve.frontend.offline.outputs import RequestOutput

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module")]

PARAMS = SamplingParams(temperature=1.0, max_tokens=24, seed=1, ignore_eos=True)
LONG = SamplingParams(max_tokens=400, seed=1, ignore_eos=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def async_llm(model: Path) -> AsyncIterator[AsyncLLM]:
    """One engine for all tests of this file."""
    llm = AsyncLLM(str(model), executor="simulated", use_tqdm=False, num_threads=1)
    # Slow enough for a request to be aborted before it ends.
    llm._flags.append("--simulated-step-ms=10")
    async with llm:
        yield llm


async def all_of(llm: AsyncLLM, prompt: str, params: SamplingParams = PARAMS) -> list[RequestOutput]:
    return [output async for output in llm.generate(prompt, params)]


async def test_a_stream_grows_to_what_llm_generates(async_llm: AsyncLLM, llm: LLM) -> None:
    outputs = await all_of(async_llm, "Hello")
    texts = [output.outputs[0].text for output in outputs]
    assert all(after.startswith(before) for before, after in itertools.pairwise(texts))
    assert len(texts) > 2
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert outputs[-1].outputs == llm.generate("Hello", PARAMS, use_tqdm=False)[0].outputs
    assert len(outputs[0].outputs[0].token_ids) < 24, "an output that was yielded does not grow"


async def test_a_chat_is_rendered_as_by_llm(async_llm: AsyncLLM, llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    outputs = [output async for output in async_llm.chat(messages, PARAMS)]
    whole = llm.chat(messages, PARAMS, use_tqdm=False)[0]
    assert outputs[-1].prompt == whole.prompt
    assert outputs[-1].outputs == whole.outputs


async def test_many_streams_on_many_loops_have_their_own_tokens(async_llm: AsyncLLM) -> None:
    alone = (await all_of(async_llm, "x"))[-1].outputs
    found: list[object] = []

    def other_loop() -> None:
        async def several() -> None:
            many = await asyncio.gather(*(all_of(async_llm, "x") for _ in range(20)))
            found.extend(outputs[-1].outputs for outputs in many)

        asyncio.run(several())

    threads = [threading.Thread(target=other_loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
    assert found == [alone] * 80


async def test_abort_ends_the_stream_with_what_came(async_llm: AsyncLLM) -> None:
    outputs = []
    async for output in async_llm.generate("Hello", LONG, request_id="mine"):
        outputs.append(output)
        async_llm.abort(["mine", "nobody's"])
    assert outputs[-1].request_id == "mine"
    assert outputs[-1].finished
    assert outputs[-1].outputs[0].finish_reason == "abort"
    assert len(outputs[-1].outputs[0].token_ids) < 400


async def test_a_stream_that_is_left_frees_its_id_and_its_place(async_llm: AsyncLLM) -> None:
    for _ in range(3):
        stream = async_llm.generate("Hello", LONG, request_id="again")
        assert not (await anext(stream)).finished
        twin = async_llm.generate("Hello", LONG, request_id="again")
        with pytest.raises(InvalidRequestError, match="'again' is open"):
            await anext(twin)
        await stream.aclose()


async def test_the_prefix_cache_can_be_reset(async_llm: AsyncLLM) -> None:
    prompt = "the quick brown fox jumps over the lazy dog " * 8
    await all_of(async_llm, prompt)
    assert (await all_of(async_llm, prompt))[-1].num_cached_tokens > 0
    assert await async_llm.reset_prefix_cache()
    assert (await all_of(async_llm, prompt))[-1].num_cached_tokens == 0


async def test_a_wrong_request_fails_alone(async_llm: AsyncLLM) -> None:
    with pytest.raises(InvalidRequestError, match="one at a time, got 2"):
        async_llm.generate(["a", "b"], PARAMS)  # type: ignore[list-item]
    with pytest.raises(TypeError, match="no argument 'sampling_param'"):
        async_llm.generate("a", sampling_param=PARAMS)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequestError):
        [output async for output in async_llm.generate([10**7], PARAMS)]
    assert (await all_of(async_llm, "a"))[-1].finished


async def test_what_is_not_started_or_closed_says_so(model: Path) -> None:
    llm = AsyncLLM(str(model), executor="simulated", use_tqdm=False)
    with pytest.raises(ConfigError, match="not started"):
        llm.generate("a")
    await llm.start()
    with pytest.raises(ConfigError, match="started already"):
        await llm.start()
    stream = llm.generate("Hello", SamplingParams(max_tokens=400, ignore_eos=True))
    await anext(stream)
    await llm.close()
    await llm.close()
    with pytest.raises(ConfigError, match="closed"):
        [output async for output in stream]
    with pytest.raises(ConfigError, match="closed"):
        llm.generate("a")
