"""Beam search and streamed prompt logprobs through the OpenAI SDK, on the demo model."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from openai import APIStatusError, BadRequestError, OpenAI

from tests.system.processes import Server

pytestmark = pytest.mark.system

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
DEADLINE_S = 60.0
SEARCH = {"use_beam_search": True, "return_token_ids": True}


def rate(choice: Any, length_penalty: float = 1.0) -> float:
    return sum(choice.logprobs.token_logprobs) / len(choice.token_ids) ** length_penalty


@pytest.mark.parametrize("extra", [{}, {"length_penalty": 0.0, "early_stopping": "never"}, {"best_of": 7}])
def test_outputs_come_best_first_and_have_the_logprobs_the_model_gives_them(
    client: OpenAI, model: str, extra: dict
) -> None:
    options = {"model": model, "prompt": "Two and two", "n": 4, "max_tokens": 12, "logprobs": 0}
    answer = client.completions.create(**options, extra_body=SEARCH | extra)
    rates = [rate(choice, extra.get("length_penalty", 1.0)) for choice in answer.choices]
    assert rates == sorted(rates, reverse=True)
    assert len({tuple(choice.token_ids) for choice in answer.choices}) == 4
    assert answer.usage.completion_tokens == sum(len(choice.token_ids) for choice in answer.choices)
    assert answer.usage.prompt_tokens == len(answer.choices[0].prompt_token_ids)
    prompt = answer.choices[0].prompt_token_ids
    for choice in answer.choices:
        scored = client.completions.create(
            model=model,
            prompt=[*prompt, *choice.token_ids],
            max_tokens=0,
            extra_body={"prompt_logprobs": 0},
        )
        scores = scored.choices[0].prompt_logprobs[len(prompt) :]
        own = [entry[str(token)]["logprob"] for token, entry in zip(choice.token_ids, scores, strict=True)]
        assert own == choice.logprobs.token_logprobs


def test_a_width_of_one_is_greedy_in_chat_too(client: OpenAI, model: str) -> None:
    options = {"model": model, "messages": CAPITAL, "max_tokens": 24}
    greedy = client.chat.completions.create(
        **options, temperature=0, extra_body={"return_token_ids": True}
    ).choices[0]
    found = client.chat.completions.create(
        **options, logprobs=True, top_logprobs=2, extra_body=SEARCH
    ).choices[0]
    assert (found.token_ids, found.message.content) == (greedy.token_ids, greedy.message.content)
    assert (found.finish_reason, found.stop_reason) == (greedy.finish_reason, greedy.stop_reason)
    assert [len(entry.top_logprobs) for entry in found.logprobs.content] == [2] * len(found.token_ids)


def test_a_wide_search_finds_no_worse_than_greedy_and_is_the_same_again(client: OpenAI, model: str) -> None:
    options = {"model": model, "prompt": ["Once", "Two"], "max_tokens": 10, "logprobs": 0}
    whole = SEARCH | {"length_penalty": 0.0, "early_stopping": "never", "ignore_eos": True}
    greedy = client.completions.create(**options, extra_body=whole).choices
    wide = client.completions.create(**options, n=2, extra_body=whole | {"best_of": 12}).choices
    assert [rate(wide[2 * i], 0.0) >= rate(greedy[i], 0.0) for i in range(2)] == [True, True]
    assert client.completions.create(**options, n=2, extra_body=whole | {"best_of": 12}).choices == wide


@pytest.mark.parametrize(
    ("options", "extra", "param"),
    [
        ({"stream": True}, {}, "stream"),
        ({"temperature": 0.7}, {}, "temperature"),
        ({"stop": ["x"]}, {}, "stop"),
        ({"n": 3}, {"best_of": 2}, "best_of"),
        ({}, {"length_penalty": 99}, "length_penalty"),
        ({}, {"early_stopping": "soon"}, "early_stopping"),
    ],
)
def test_what_a_search_cannot_take_is_named(
    client: OpenAI, model: str, options: dict, extra: dict, param: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=CAPITAL, **options, extra_body=SEARCH | extra)
    assert caught.value.param == param


LONG = {"prompt": "Once upon a time", "use_beam_search": True, "n": 8, "max_tokens": 1500, "ignore_eos": True}


def test_a_timeout_ends_the_whole_search(client: OpenAI, model: str) -> None:
    fields = dict(LONG)
    with pytest.raises(APIStatusError) as caught:
        client.completions.create(
            model=model,
            prompt=str(fields.pop("prompt")),
            extra_body=fields | {"timeout": 0.2, "early_stopping": "never"},
        )
    assert (caught.value.status_code, caught.value.code) == (504, "timeout")


async def test_a_client_that_hangs_up_ends_its_search(server: Server) -> None:
    root = server.base_url.removesuffix("/v1")

    async def num_open(client: httpx.AsyncClient) -> int:
        engines = (await client.get(f"{root}/health")).json()["engines"]
        return sum(engine["num_running"] + engine["num_waiting"] for engine in engines)

    async def num_ended(client: httpx.AsyncClient) -> float:
        lines = (await client.get(f"{root}/metrics")).text.splitlines()
        found = [line for line in lines if line.startswith("splitserve:request_success_total{")]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    async with httpx.AsyncClient(timeout=DEADLINE_S) as client, asyncio.timeout(DEADLINE_S):
        before = await num_ended(client)
        asking = asyncio.create_task(client.post(f"{root}/v1/completions", json=LONG))
        while not await num_open(client):
            assert not asking.done()
        asking.cancel()
        quiet = 0
        while quiet < 20:
            quiet = 0 if await num_open(client) else quiet + 1
        # A step of 8 beams is 8 requests; the whole search would be 1,500 steps.
        assert await num_ended(client) - before < 8 * 1000


def test_streamed_prompt_logprobs_are_those_of_the_whole_answer(client: OpenAI, model: str) -> None:
    extra = {"prompt_logprobs": 2}
    chat = {"model": model, "messages": CAPITAL, "max_tokens": 3, "temperature": 0, "extra_body": extra}
    chunks = list(client.chat.completions.create(**chat, stream=True))
    found = [chunk.prompt_logprobs for chunk in chunks if hasattr(chunk, "prompt_logprobs")]
    assert found == [client.chat.completions.create(**chat).prompt_logprobs]
    text = {
        "model": model,
        "prompt": ["Two", "Once upon"],
        "max_tokens": 3,
        "temperature": 0,
        "extra_body": extra,
    }
    choices = [choice for chunk in client.completions.create(**text, stream=True) for choice in chunk.choices]
    scores = {c.index: c.prompt_logprobs for c in choices if hasattr(c, "prompt_logprobs")}
    assert scores == {c.index: c.prompt_logprobs for c in client.completions.create(**text).choices}


def test_a_streamed_echo_with_logprobs_begins_with_the_prompt(client: OpenAI, model: str) -> None:
    options = {"model": model, "prompt": "Two and two", "max_tokens": 3, "temperature": 0, "logprobs": 1}
    whole = client.completions.create(**options, echo=True).choices[0]
    chunks = list(client.completions.create(**options, echo=True, stream=True))
    tokens = [token for chunk in chunks for choice in chunk.choices for token in choice.logprobs.tokens]
    values = [
        value for chunk in chunks for choice in chunk.choices for value in choice.logprobs.token_logprobs
    ]
    assert (tokens, values) == (whole.logprobs.tokens, whole.logprobs.token_logprobs)
