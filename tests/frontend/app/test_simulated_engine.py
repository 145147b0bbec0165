"""The whole HTTP side over a real pool and a real engine-core process that makes tokens up."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import weakref
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from splitserve.frontend.engines.connection.engine_socket import MAX_FRAMES_PER_WAKEUP
from splitserve.frontend.engines.pool import EnginePool
from splitserve.frontend.openai.generation_run import GenerationRun
from tests.frontend.app.simulated import Engine, simulated_engine
from tests.frontend.checkpoints import write_checkpoint
from tests.frontend.http.app_fixtures import serving
from tests.frontend.http.response.sse_events import events, joined

pytestmark = pytest.mark.system

DEADLINE_S = 60.0


@contextlib.asynccontextmanager
async def ready_frontend(engine: Engine) -> AsyncGenerator[str, None]:
    pool = EnginePool([engine.address], "http-test")
    async with serving(pool) as (address, _):
        await until_ready(address, pool)
        yield address


@pytest.fixture
async def url(engine: Engine) -> AsyncGenerator[str, None]:
    """A frontend over it, ready."""
    async with ready_frontend(engine) as address:
        yield address


@pytest.fixture(scope="module")
def slow_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine that takes ten seconds for 500 tokens: what a test has begun still runs when it looks."""
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("model"))
    with simulated_engine(checkpoint, "--simulated-step-ms", "20") as engine:
        yield engine


@pytest.fixture
async def slow_url(slow_engine: Engine) -> AsyncGenerator[str, None]:
    """A frontend over that, ready."""
    async with ready_frontend(slow_engine) as address:
        yield address


@pytest.fixture
async def sdk(url: str) -> AsyncGenerator[openai.AsyncOpenAI, None]:
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=DEADLINE_S
    ) as client:
        yield client


async def until_ready(url: str, pool: EnginePool) -> None:
    """The server starts its pool before it answers anything."""
    async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
        assert (await client.get(f"{url}/live")).status_code == 200
    await pool.wait_ready(DEADLINE_S)


async def complete(url: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
        return await client.post(f"{url}/v1/completions", json={"prompt": "hello world"} | body)


async def running(url: str) -> int:
    """Sequences on the engine, by a round trip through it."""
    async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
        engines = (await client.get(f"{url}/health")).json()["engines"]
    return engines[0]["num_running"] + engines[0]["num_waiting"]


COMMON = {"max_tokens": 60, "ignore_eos": True, "seed": 3}


async def test_a_stream_shows_the_text_and_tokens_of_the_whole_answer(url: str) -> None:
    body = COMMON | {"n": 3, "prompt": ["hello", "world"], "return_token_ids": True, "logprobs": 2}
    whole = (await complete(url, **body)).json()
    chunks = events((await complete(url, **body, stream=True)).text)
    for choice in whole["choices"]:
        index = choice["index"]
        assert joined(chunks, index) == choice["text"]
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert [t for c in mine for t in c["token_ids"]] == choice["token_ids"]
        assert [t for c in mine if c["logprobs"] for t in c["logprobs"]["tokens"]] == choice["logprobs"][
            "tokens"
        ]
    assert whole["usage"]["completion_tokens"] == 6 * 60


async def test_equal_seeds_repeat_and_other_seeds_do_not(url: str) -> None:
    texts = [
        (await complete(url, **(COMMON | {"seed": seed}))).json()["choices"][0]["text"] for seed in (3, 3, -3)
    ]
    assert texts[0] == texts[1] != texts[2]


async def test_chat_through_the_sdk(sdk: openai.AsyncOpenAI) -> None:
    messages = [{"role": "user", "content": "hello <|im_end|>"}]
    whole = await sdk.chat.completions.create(model="org/sim", messages=messages, max_tokens=20, seed=1)
    stream = await sdk.chat.completions.create(
        model="org/sim",
        messages=messages,
        max_tokens=20,
        seed=1,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert whole.choices[0].finish_reason in ("stop", "length")


async def test_a_stop_string_ends_the_text_and_never_shows(url: str) -> None:
    text = (await complete(url, **COMMON)).json()["choices"][0]["text"]
    stop = text[10:14]
    choice = (await complete(url, **COMMON, stop=[stop])).json()["choices"][0]
    assert choice["text"] == text[: text.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    chunks = events((await complete(url, **COMMON, stop=[stop], stream=True)).text)
    assert joined(chunks) == choice["text"]
    kept = (await complete(url, **COMMON, stop=[stop], include_stop_str_in_output=True)).json()["choices"][0]
    assert kept["text"] == choice["text"] + stop


async def test_echo_scores_the_prompt(url: str) -> None:
    body = (await complete(url, prompt="hello world", echo=True, logprobs=1, max_tokens=0)).json()
    choice = body["choices"][0]
    assert choice["text"] == "hello world"
    assert len(choice["logprobs"]["tokens"]) == body["usage"]["prompt_tokens"]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert all(isinstance(value, float) for value in choice["logprobs"]["token_logprobs"][1:])
    assert body["usage"]["completion_tokens"] == 0


async def test_usage_tells_cached_tokens_of_a_repeated_prompt(url: str) -> None:
    prompt = list(range(100, 200))
    first, second = [(await complete(url, prompt=prompt, max_tokens=1)).json()["usage"] for _ in range(2)]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] >= 80


async def test_what_tokenize_says_is_what_the_prompt_costs(url: str) -> None:
    messages = [{"role": "user", "content": "hello"}]
    async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
        counted = (await client.post(f"{url}/tokenize", json={"messages": messages})).json()
        chat = await client.post(f"{url}/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
        text = await client.post(f"{url}/detokenize", json={"tokens": counted["tokens"]})
    assert counted["count"] == chat.json()["usage"]["prompt_tokens"]
    assert text.json()["prompt"].startswith("<|im_start|>user\nhello<|im_end|>")


async def num_aborted(url: str) -> float:
    """Sequences that ended on the engine because nobody wanted them any more."""
    async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
        text = (await client.get(f"{url}/metrics")).text
    return sum(
        float(value) for value in re.findall(r'^splitserve:request_success.*"abort".* (.+)$', text, re.M)
    )


async def test_a_client_that_hangs_up_frees_its_sequences_on_the_engine(slow_url: str) -> None:
    before = await num_aborted(slow_url)
    body = {"prompt": "x", "n": 4, "max_tokens": 500, "ignore_eos": True, "stream": True}
    async with (
        httpx.AsyncClient(timeout=DEADLINE_S) as client,
        client.stream("POST", f"{slow_url}/v1/completions", json=body) as response,
    ):
        assert response.status_code == 200
        await anext(response.aiter_lines())
    async with asyncio.timeout(DEADLINE_S):
        while await running(slow_url):
            pass
    assert await num_aborted(slow_url) == before + 4


async def test_an_ended_stream_is_freed_without_the_garbage_collector(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[GenerationRun]] = []
    init = GenerationRun.__init__

    def remember(self: GenerationRun, *args: Any) -> None:
        made.append(weakref.ref(self))
        init(self, *args)

    monkeypatch.setattr(GenerationRun, "__init__", remember)
    gc.collect()
    gc.disable()
    try:
        assert (await complete(url, n=2, stream=True, max_tokens=4)).status_code == 200
        await running(url)
        assert [ref() for ref in made] == [None]
    finally:
        gc.enable()


async def test_what_one_step_brings_is_sent_together(url: str) -> None:
    """Pieces of the chunked encoding that hold more than one event, as 8 completions move in step."""
    body = {"prompt": "hello", "n": 8, "max_tokens": 300, "ignore_eos": True, "stream": True}
    num_events = num_pieces = 0
    async with (
        httpx.AsyncClient(timeout=DEADLINE_S) as client,
        client.stream("POST", f"{url}/v1/completions", json=body) as response,
    ):
        async for piece in response.aiter_raw():
            num_pieces += 1
            num_events += piece.count(b"data: {")
    # Steps that are there together are one event per completion; so many come in several parts at least.
    assert num_events >= 8 * (300 // MAX_FRAMES_PER_WAKEUP)
    assert num_pieces < num_events / 4


async def test_a_full_queue_is_429_and_the_server_recovers(slow_url: str) -> None:
    fills_all = {"prompt": "x", "n": 16, "max_tokens": 500, "ignore_eos": True, "stream": True}
    async with (
        httpx.AsyncClient(timeout=DEADLINE_S) as client,
        client.stream("POST", f"{slow_url}/v1/completions", json=fills_all) as stream,
    ):
        assert stream.status_code == 200
        # Held, since an iterator that is thrown away closes its connection.
        lines = stream.aiter_lines()
        await anext(lines)
        response = await complete(slow_url, prompt="x", n=16)
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["type"] == "rate_limit_error"
    async with asyncio.timeout(DEADLINE_S):
        while await running(slow_url):
            pass
    assert (await complete(slow_url, max_tokens=2)).status_code == 200


async def test_metrics_count_what_the_engine_did(url: str) -> None:
    await complete(url, max_tokens=5, ignore_eos=True)
    async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
        await client.get(f"{url}/health")
        text = (await client.get(f"{url}/metrics")).text
    assert 'splitserve:engine_state{engine="engine-0",state="ready"} 1.0' in text
    assert (
        'splitserve:time_to_first_token_seconds_count{frontend="frontend-0",model_name="org/sim"} 1.0' in text
    )
    assert (
        'splitserve:request_success_total{engine="engine-0",finished_reason="length",model_name="org/sim"}'
        in text
    )


async def test_a_dead_engine_fails_the_stream_that_may_not_wait_with_one_event_and_health_at_once(
    tmp_path: Path,
) -> None:
    with simulated_engine(write_checkpoint(tmp_path / "model"), "--simulated-step-ms", "20") as doomed:
        pool = EnginePool([doomed.address], "http-test", failover_wait_s=0.0)
        async with serving(pool, health_timeout_s=1) as (url, _), httpx.AsyncClient() as client:
            await until_ready(url, pool)
            body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True}
            async with client.stream(
                "POST", f"{url}/v1/completions", json=body, timeout=DEADLINE_S
            ) as response:
                assert response.status_code == 200
                lines = response.aiter_lines()
                await anext(lines)
                doomed.process.kill()
                rest = [line async for line in lines]
            said = [line for line in rest if line]
            assert '"code":"engine_unavailable"' in said[-2]
            assert said[-1] == "data: [DONE]"
            assert (await client.get(f"{url}/health", timeout=DEADLINE_S)).status_code == 503
            assert (await client.get(f"{url}/live")).status_code == 200
