"""POST /v1/completions: what reaches the engine, and what comes back."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import httpx
import pytest

from splitserve.engine_core.checkpoint.config.sampling_defaults import SamplingDefaults
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.engine_core.sequence_sampling import RepetitionDetection
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from tests.frontend.http.app_fixtures import ClientFactory
from tests.frontend.http.fake_pool import BOS, MAX_MODEL_LEN, FakePool, deltas_of, fake_logprob


async def complete(client: httpx.AsyncClient, **body: object) -> dict:
    response = await client.post("/v1/completions", json={"prompt": "abc"} | body)
    assert response.status_code == 200, response.text
    return response.json()


def sent(pool: FakePool) -> SamplingParams:
    return pool.seen[-1].request.sampling


SAMPLING_FIELDS = [
    ({"n": 3}, {"n": 3}),
    ({"temperature": 0.5}, {"temperature": 0.5}),
    ({"temperature": 1}, {"temperature": 1.0}),
    ({"top_p": 0.25}, {"top_p": 0.25}),
    ({"top_k": 7}, {"top_k": 7}),
    ({"top_k": -1}, {"top_k": -1}),
    ({"min_p": 0.125}, {"min_p": 0.125}),
    ({"presence_penalty": -1.5}, {"presence_penalty": -1.5}),
    ({"frequency_penalty": 1.5}, {"frequency_penalty": 1.5}),
    ({"repetition_penalty": 1.25}, {"repetition_penalty": 1.25}),
    ({"seed": 42}, {"seed": 42}),
    ({"seed": -1}, {"seed": 2**64 - 1}),
    ({"seed": -(2**63)}, {"seed": 2**63}),
    ({"seed": 2**64 - 1}, {"seed": 2**64 - 1}),
    ({"stop": "x"}, {"stop": ("x",)}),
    ({"stop": ["x", "yz"]}, {"stop": ("x", "yz")}),
    ({"stop": []}, {"stop": ()}),
    ({"stop_token_ids": [1, 2]}, {"stop_token_ids": (1, 2)}),
    ({"max_tokens": 9}, {"max_tokens": 9}),
    ({"min_tokens": 4}, {"min_tokens": 4}),
    ({"ignore_eos": True}, {"ignore_eos": True}),
    ({"logit_bias": {"5": -100, "6": 2.5}}, {"logit_bias": {5: -100.0, 6: 2.5}}),
    ({"allowed_token_ids": [5, 6, 5]}, {"allowed_token_ids": (5, 6, 5)}),
    ({"allowed_token_ids": [1] * 10_000}, {"allowed_token_ids": (1,) * 10_000}),
    ({"bad_words": ["damn", " é"]}, {"bad_words": ("damn", " é")}),
    ({"bad_words": ["x" * 256] * 128}, {"bad_words": ("x" * 256,) * 128}),
    ({"bad_words": []}, {"bad_words": ()}),
    ({"logprob_token_ids": [7, 8], "logprobs": 0}, {"logprob_token_ids": (7, 8), "logprobs": 0}),
    ({"logprob_token_ids": [], "logprobs": None}, {"logprob_token_ids": (), "logprobs": None}),
    (
        {"repetition_detection": {"max_pattern_size": 8, "min_count": 3}},
        {"repetition_detection": RepetitionDetection(8, 1, 3)},
    ),
    ({"repetition_detection": None}, {"repetition_detection": None}),
    ({"logprobs": 3}, {"logprobs": 3}),
    ({"logprobs": 0}, {"logprobs": 0}),
    ({"prompt_logprobs": 2}, {"prompt_logprobs": 2}),
    ({"skip_special_tokens": False}, {"skip_special_tokens": False}),
    ({"include_stop_str_in_output": True}, {"include_stop_str_in_output": True}),
    ({"echo": True, "logprobs": 2}, {"logprobs": 2, "prompt_logprobs": 2}),
    ({"best_of": 2, "n": 2}, {"n": 2, "best_of": 2}),
]


@pytest.mark.parametrize(("body", "expected"), SAMPLING_FIELDS)
async def test_every_sampling_field_reaches_the_engine(
    client: httpx.AsyncClient, pool: FakePool, body: dict, expected: dict
) -> None:
    await complete(client, **body)
    default = SamplingParams(max_tokens=16)
    for name in SamplingParams.__struct_fields__:
        assert getattr(sent(pool), name) == expected.get(name, getattr(default, name)), name


async def test_null_means_unset_for_every_field(client: httpx.AsyncClient, pool: FakePool) -> None:
    from splitserve.frontend.openai.schema.completions import CompletionRequest

    names = [name for name in CompletionRequest.__struct_fields__ if name != "prompt"]
    await complete(client, **dict.fromkeys(names))
    assert sent(pool) == SamplingParams(max_tokens=16)


async def test_request_fields_beside_sampling_reach_the_engine(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    await complete(client, cache_salt="pepper", priority=-3, request_id="abc.1")
    request = pool.seen[-1].request
    assert (request.cache_salt, request.priority, request.request_id) == ("pepper", -3, "cmpl-abc.1")


async def test_defaults_come_from_the_checkpoint_unless_the_client_or_the_operator_says_otherwise(
    make_client: ClientFactory, pool: FakePool
) -> None:
    pool.defaults = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.1)
    client = make_client()
    await complete(client, top_p=1)
    found = sent(pool)
    assert (found.temperature, found.top_p, found.top_k, found.min_p, found.repetition_penalty) == (
        0.6,
        1,
        20,
        0.1,
        1.1,
    )
    await complete(make_client(generation_config="none"))
    assert sent(pool) == SamplingParams(max_tokens=16)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [[BOS, 97, 98]]),
        ([1, 2, 3], [[1, 2, 3]]),
        (["a", "b"], [[BOS, 97], [BOS, 98]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ("\u0000", [[BOS, 0]]),
        ("👩‍👩‍👧", [[BOS, *"👩‍👩‍👧".encode()]]),
    ],
)
async def test_every_form_of_prompt_is_encoded(
    client: httpx.AsyncClient, pool: FakePool, prompt: object, expected: list[list[int]]
) -> None:
    body = await complete(client, prompt=prompt)
    by_id = sorted(pool.seen, key=lambda seen: seen.request.request_id)
    assert [seen.request.prompt_token_ids for seen in by_id] == expected
    assert [choice["index"] for choice in body["choices"]] == list(range(len(expected)))


async def test_special_tokens_can_be_left_out(client: httpx.AsyncClient, pool: FakePool) -> None:
    await complete(client, prompt="a", add_special_tokens=False)
    assert pool.seen[-1].request.prompt_token_ids == [97]


async def test_the_answer_has_every_field_of_openai(client: httpx.AsyncClient) -> None:
    body = await complete(client, model="alias", request_id="r1")
    assert body.pop("created") > 1_600_000_000
    assert body.pop("system_fingerprint").startswith("fp_")
    assert body == {
        "id": "cmpl-r1",
        "object": "text_completion",
        "model": "alias",
        "choices": [
            {
                "index": 0,
                "text": "Hi there",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
                "prompt_token_ids": None,
                "prompt_logprobs": None,
                "routed_experts": None,
            }
        ],
        "usage": {
            "prompt_tokens": 4,
            "completion_tokens": 8,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "service_tier": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


async def test_choice_index_is_prompt_times_n_plus_completion(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        for index in (1, 0):
            name = chr(request.prompt_token_ids[-1])
            yield OutputDelta(index, f"{name}{index}", [1], finish_reason="length")

    pool.script = script
    body = await complete(client, prompt=["x", "y"], n=2)
    assert [choice["text"] for choice in body["choices"]] == ["x0", "x1", "y0", "y1"]


async def test_usage_counts_prompts_once_and_takes_the_least_cached_completion(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        for index, cached in ((0, 2), (1, 3)):
            yield OutputDelta(index, "ab", [1, 2], num_cached_tokens=cached)
            yield OutputDelta(index, "", [], finish_reason="stop", num_cached_tokens=cached)

    pool.script = script
    usage = (await complete(client, prompt=["abc", "defg"], n=2))["usage"]
    assert usage == {
        "prompt_tokens": 9,
        "completion_tokens": 8,
        "total_tokens": 17,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


async def test_drafted_tokens_count_as_predictions(client: httpx.AsyncClient, pool: FakePool) -> None:
    async def drafting(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        for index in range(2):
            yield OutputDelta(index, "ab", [1, 2])
            last = OutputDelta(index, "", [], finish_reason="stop")
            last.num_draft_tokens, last.num_accepted_draft_tokens = 5, 1 + index
            yield last

    pool.script = drafting
    details = (await complete(client, prompt="x", n=2))["usage"]["completion_tokens_details"]
    assert details == {"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 7}


async def test_logprobs_come_in_columns_with_offsets_in_characters(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    pool.text = "aé"
    logprobs = (await complete(client, logprobs=1))["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9"]
    assert logprobs["token_logprobs"] == [-0.97, -1.95, -1.69]
    assert logprobs["top_logprobs"][0] == {"a": -0.97}
    assert logprobs["text_offset"] == [0, 1, 2]


async def test_ids_asked_for_are_shown_beside_the_alternatives(client: httpx.AsyncClient) -> None:
    logprobs = (await complete(client, logprobs=1, logprob_token_ids=[122, 72]))["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"][:2] == [{"H": -0.72, "z": -1.22}, {"H": -0.72, "i": -1.05, "z": -1.22}]


async def test_echo_puts_the_prompt_and_its_logprobs_first(client: httpx.AsyncClient) -> None:
    choice = (await complete(client, prompt="ab", echo=True, logprobs=1))["choices"][0]
    assert choice["text"] == "abHi there"
    assert choice["logprobs"]["tokens"][:4] == ["<|256|>", "a", "b", "H"]
    assert choice["logprobs"]["token_logprobs"][:3] == [None, -0.97, -0.98]
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert choice["logprobs"]["text_offset"][:4] == [0, 0, 1, 2]


async def test_offsets_of_echoed_ids_count_the_special_tokens_that_are_shown(
    client: httpx.AsyncClient,
) -> None:
    body = {"prompt": [256, *b"ab"], "echo": True, "logprobs": 0}
    choice = (await complete(client, **body))["choices"][0]
    assert choice["text"] == "<|256|>abHi there"
    assert choice["logprobs"]["text_offset"][:5] == [0, 7, 8, 9, 10]


@pytest.mark.parametrize(("skip", "offset"), [(True, 1), (False, 8)])
async def test_offsets_count_special_tokens_of_the_output_if_they_are_shown(
    client: httpx.AsyncClient, pool: FakePool, skip: bool, offset: int
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        logprobs = [fake_logprob(token, 0) for token in (97, 257, 98)]
        yield OutputDelta(0, "a...b", [97, 257, 98], logprobs=logprobs, finish_reason="length")

    pool.script = script
    choice = (await complete(client, logprobs=0, skip_special_tokens=skip))["choices"][0]
    assert choice["logprobs"]["text_offset"] == [0, 1, offset]


async def test_an_echo_begins_every_choice_with_the_prompts_logprobs(client: httpx.AsyncClient) -> None:
    body = await complete(client, prompt=["ab", "c"], echo=True, logprobs=0, n=2)
    columns = [choice["logprobs"] for choice in body["choices"]]
    assert columns[:2] == [columns[0]] * 2
    assert columns[2:] == [columns[2]] * 2
    assert [choice["tokens"][:4] for choice in columns[1::2]] == [
        ["<|256|>", "a", "b", "H"],
        ["<|256|>", *"cHi"],
    ]
    assert [choice["text_offset"][:4] for choice in columns[1::2]] == [[0, 0, 1, 2], [0, 0, 1, 2]]


@pytest.mark.parametrize(("num_echoed", "num_asked"), [(3, 1), (0, 2)])
async def test_echo_and_prompt_logprobs_each_show_the_alternatives_they_ask_for(
    client: httpx.AsyncClient, num_echoed: int, num_asked: int
) -> None:
    fields = {"prompt": "ab", "echo": True, "logprobs": num_echoed, "prompt_logprobs": num_asked}
    choice = (await complete(client, **fields))["choices"][0]
    assert len(choice["logprobs"]["top_logprobs"][1]) == max(1, num_echoed)
    assert len(choice["prompt_logprobs"][1]) == num_asked


@pytest.mark.parametrize("more", [{}, {"echo": True, "logprobs": 2}])
async def test_a_negative_number_of_prompt_logprobs_is_refused(
    client: httpx.AsyncClient, more: dict[str, object]
) -> None:
    response = await client.post("/v1/completions", json={"prompt": "a", "prompt_logprobs": -1, **more})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt_logprobs")
    assert "0 to 20" in response.json()["error"]["message"]


async def test_echo_of_token_ids_shows_their_text(client: httpx.AsyncClient) -> None:
    assert (await complete(client, prompt=[97, 98], echo=True))["choices"][0]["text"] == "abHi there"


async def test_max_tokens_0_scores_a_prompt_and_shows_no_output(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    body = await complete(client, prompt="ab", echo=True, logprobs=0, max_tokens=0, return_token_ids=True)
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["token_ids"]) == ("ab", "length", [])
    assert choice["logprobs"]["tokens"] == ["<|256|>", "a", "b"]
    assert body["usage"]["completion_tokens"] == 0
    assert sent(pool).max_tokens == 0


async def test_token_ids_and_prompt_logprobs_are_returned_when_asked_for(client: httpx.AsyncClient) -> None:
    choice = (await complete(client, prompt="ab", return_token_ids=True, prompt_logprobs=1))["choices"][0]
    assert choice["token_ids"] == list(b"Hi there")
    assert choice["prompt_token_ids"] == [BOS, 97, 98]
    assert choice["prompt_logprobs"] == [
        None,
        {"97": {"logprob": -0.97, "rank": 1, "decoded_token": "a"}},
        {"98": {"logprob": -0.98, "rank": 1, "decoded_token": "b"}},
    ]


async def test_stop_reason_names_what_matched(client: httpx.AsyncClient, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "a", [97], finish_reason="stop", stop_reason=7)

    pool.script = script
    choice = (await complete(client, stop_token_ids=[7]))["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", 7)


async def test_infinite_logprobs_become_numbers_json_can_carry(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        delta = deltas_of("a", request)[0]
        delta.logprobs[0].logprob = float("-inf")
        delta.logprobs[0].top = [(98, float("nan"))]
        yield delta

    pool.script = script
    logprobs = (await complete(client, logprobs=1))["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-9999.0]
    assert logprobs["top_logprobs"] == [{"a": -9999.0, "b": -9999.0}]


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "expected"), [(250, 6, 6), (250, None, 6), (255, 1, 1), (10, None, 16)]
)
async def test_a_prompt_may_fill_the_context_to_the_last_token(
    client: httpx.AsyncClient, pool: FakePool, prompt_len: int, max_tokens: int | None, expected: int
) -> None:
    assert MAX_MODEL_LEN == 256
    await complete(client, prompt=[1] * prompt_len, max_tokens=max_tokens)
    assert sent(pool).max_tokens == expected


async def test_request_ids_of_headers_go_first_and_come_back(client: httpx.AsyncClient) -> None:
    response = await client.post(
        "/v1/completions", json={"prompt": "a", "request_id": "body"}, headers={"X-Request-Id": "head-1"}
    )
    assert response.json()["id"] == "cmpl-head-1"
    assert response.headers["x-request-id"] == "head-1"


@pytest.mark.parametrize("value", ["a b", "x" * 101, "http://10.0.0.1/", "ünï", ""])
async def test_an_unusable_request_id_header_is_replaced(client: httpx.AsyncClient, value: str) -> None:
    headers = {b"X-Request-Id": value.encode("latin-1")}
    response = await client.post("/v1/completions", json={"prompt": "a"}, headers=headers)
    assert response.status_code == 200
    assert len(response.headers["x-request-id"]) == 32
