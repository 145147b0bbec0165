"""POST /v1/chat/completions: what the template and the engine get, and what comes back."""

from __future__ import annotations

import httpx
import pytest

from splitserve.engine_core.checkpoint.config.sampling_defaults import SamplingDefaults
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.text.chat.options import ChatOptions
from tests.frontend.http.fake_pool import BOS, FakePool

USER = {"role": "user", "content": "hello"}
NULL_IN_MESSAGE = ["refusal", "annotations", "audio", "function_call", "reasoning", "reasoning_content"]
NULL_IN_ANSWER = [
    "service_tier",
    "prompt_token_ids",
    "prompt_logprobs",
    "prompt_text",
    "kv_transfer_params",
    "ec_transfer_params",
    "metrics",
]


async def chat(client: httpx.AsyncClient, **body: object) -> dict:
    response = await client.post("/v1/chat/completions", json={"messages": [USER]} | body)
    assert response.status_code == 200, response.text
    return response.json()


def sent(pool: FakePool) -> SamplingParams:
    return pool.seen[-1].request.sampling


async def test_the_answer_has_every_field_of_openai(client: httpx.AsyncClient) -> None:
    body = await chat(client, request_id="r1")
    assert body.pop("created") > 1_600_000_000
    assert body.pop("system_fingerprint").startswith("fp_")
    assert body == {
        "id": "chatcmpl-r1",
        "object": "chat.completion",
        "model": "org/demo",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi there"} | dict.fromkeys(NULL_IN_MESSAGE),
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
                "routed_experts": None,
            }
        ],
        "usage": {
            "prompt_tokens": 23,
            "completion_tokens": 8,
            "total_tokens": 31,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        **dict.fromkeys(NULL_IN_ANSWER),
    }


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, 256 - 23),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
    ],
)
async def test_max_tokens_default_to_the_end_of_the_context(
    client: httpx.AsyncClient, pool: FakePool, body: dict, expected: int
) -> None:
    await chat(client, **body)
    assert sent(pool).max_tokens == expected


async def test_the_checkpoint_may_set_the_default_of_max_tokens(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    pool.defaults = SamplingDefaults(max_new_tokens=12)
    await chat(client)
    assert sent(pool).max_tokens == 12


@pytest.mark.parametrize(
    ("body", "logprobs"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 3}, 3),
    ],
)
async def test_logprobs_are_a_switch_and_a_number(
    client: httpx.AsyncClient, pool: FakePool, body: dict, logprobs: int | None
) -> None:
    await chat(client, **body)
    assert sent(pool).logprobs == logprobs


async def test_sampling_fields_are_those_of_completions(client: httpx.AsyncClient, pool: FakePool) -> None:
    await chat(client, n=2, temperature=0, stop="x", seed=-2, logit_bias={"1": 1}, min_tokens=3, max_tokens=9)
    assert sent(pool) == SamplingParams(
        n=2, temperature=0, stop=("x",), seed=2**64 - 2, logit_bias={1: 1.0}, min_tokens=3, max_tokens=9
    )


async def test_logprob_entries_hold_exact_bytes(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.text = "é"
    logprobs = (await chat(client, logprobs=True, top_logprobs=2))["choices"][0]["logprobs"]
    first = logprobs["content"][0]
    assert (first["token"], first["logprob"], first["bytes"]) == ("\ufffd", -1.95, [0xC3])
    assert [top["bytes"] for top in first["top_logprobs"]] == [[0xC3], [0xC4]]
    assert len(logprobs["content"]) == 2


async def test_ids_asked_for_follow_the_alternatives_once_each(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    pool.text = "H"
    body = await chat(client, logprobs=True, top_logprobs=2, logprob_token_ids=[122, 72, 122])
    entry = body["choices"][0]["logprobs"]["content"][0]
    assert [(top["token"], top["logprob"]) for top in entry["top_logprobs"]] == [
        ("H", -0.72),
        ("I", -0.73),
        ("z", -1.22),
    ]


async def test_n_answers_are_told_apart(client: httpx.AsyncClient) -> None:
    choices = (await chat(client, n=3))["choices"]
    assert [(c["index"], c["message"]["content"]) for c in choices] == [(i, "Hi there") for i in range(3)]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (USER, {"role": "user", "content": "hello"}),
        ({"role": "user", "content": ""}, {"role": "user", "content": ""}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ),
        ({"role": "user", "content": []}, {"role": "user", "content": []}),
        ({"role": "developer", "content": "x"}, {"role": "system", "content": "x"}),
        ({"role": "user", "content": "x", "name": "ann"}, {"role": "user", "content": "x", "name": "ann"}),
        ({"role": "ipython", "content": "x"}, {"role": "ipython", "content": "x"}),
        ({"role": "r" * 64, "content": "x"}, {"role": "r" * 64, "content": "x"}),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "no"}]},
        ),
        (
            {"role": "assistant", "content": None, "refusal": "no"},
            {"role": "assistant", "content": "no"},
        ),
        (
            {"role": "assistant", "content": "4", "reasoning_content": "2 and 2"},
            {"role": "assistant", "content": "4", "reasoning_content": "2 and 2"},
        ),
        (
            {"role": "assistant", "content": "4", "reasoning": "2 and 2"},
            {"role": "assistant", "content": "4", "reasoning": "2 and 2"},
        ),
        (
            {"role": "tool", "content": "4", "tool_call_id": "c1"},
            {"role": "tool", "content": "4", "tool_call_id": "c1"},
        ),
        (
            {"role": "user", "content": "<|im_end|>{{ 7*7 }}"},
            {"role": "user", "content": "<|im_end|>{{ 7*7 }}"},
        ),
    ],
)
async def test_messages_reach_the_template(
    client: httpx.AsyncClient, pool: FakePool, message: dict, expected: dict
) -> None:
    await chat(client, messages=[message])
    assert pool.template.calls[0][0] == [expected]


async def test_tool_calls_of_earlier_answers_reach_the_template_as_they_came(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
        {"id": "c2", "type": "function", "function": {"name": "say", "arguments": "not json"}},
    ]
    await chat(client, messages=[USER, {"role": "assistant", "content": None, "tool_calls": calls}])
    message = pool.template.calls[0][0][1]
    assert message["content"] is None
    assert message["tool_calls"] == calls


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, ChatOptions()),
        ({"add_generation_prompt": False}, ChatOptions(add_generation_prompt=False)),
        (
            {"continue_final_message": True},
            ChatOptions(add_generation_prompt=False, continue_final_message=True),
        ),
        ({"documents": [{"text": "d"}]}, ChatOptions(documents=[{"text": "d"}])),
        (
            {"chat_template_kwargs": {"enable_thinking": False}},
            ChatOptions(variables={"enable_thinking": False}),
        ),
    ],
)
async def test_template_options_reach_the_template(
    client: httpx.AsyncClient, pool: FakePool, body: dict, expected: ChatOptions
) -> None:
    await chat(client, **body)
    assert pool.template.calls[0][1] == expected


async def test_special_tokens_are_added_only_when_asked_for(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    await chat(client)
    await chat(client, add_special_tokens=True)
    plain, special = (seen.request.prompt_token_ids for seen in pool.seen)
    assert special == [BOS, *plain]


async def test_token_ids_and_prompt_logprobs_are_returned_when_asked_for(client: httpx.AsyncClient) -> None:
    body = await chat(client, return_token_ids=True, prompt_logprobs=0)
    assert body["choices"][0]["token_ids"] == list(b"Hi there")
    assert bytes(body["prompt_token_ids"]) == b"user: hello\nassistant: "
    assert body["prompt_logprobs"][0] is None
    assert len(body["prompt_logprobs"]) == 23


async def test_a_model_without_a_template_says_so(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.template = None
    response = await client.post("/v1/chat/completions", json={"messages": [USER]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"


async def test_a_prediction_goes_with_the_request_in_tokens(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    expected = {"type": "content", "content": "ab <think> c"}
    await chat(client, prediction=expected)
    # Tags in it are text: the client expects them in the content.
    assert pool.seen[-1].request.predicted_token_ids == [*b"ab <think> c"]
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    await chat(client, prediction=expected | {"content": parts})
    assert pool.seen[-1].request.predicted_token_ids == [*b"abc"]
    await chat(client, prediction=expected | {"content": "x" * 5000})
    assert list(pool.seen[-1].request.predicted_token_ids) == [*b"x"] * pool.max_model_len
    for nothing in ({}, {"prediction": None}, {"prediction": expected | {"content": ""}}):
        await chat(client, **nothing)
        assert list(pool.seen[-1].request.predicted_token_ids) == []


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("x", "prediction"),
        ({"type": "patch", "content": "x"}, "prediction.type"),
        ({"type": "content"}, "prediction"),
        ({"type": "content", "content": [{"type": "image_url"}]}, "prediction.content"),
    ],
)
async def test_a_wrong_prediction_is_refused(client: httpx.AsyncClient, value: object, param: str) -> None:
    body = {"messages": [USER], "prediction": value}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert str(error["param"] or "").startswith(param), error
