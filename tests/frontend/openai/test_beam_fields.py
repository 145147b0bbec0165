"""The fields of beam search: what reaches the pool, and what is refused beside them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from splitserve.engine_core.checkpoint.config.sampling_defaults import SamplingDefaults
from splitserve.engine_core.sampling_params import SamplingParams
from tests.frontend.http.fake_pool import FakePool

PATHS = {
    "/v1/completions": {"prompt": "x", "max_tokens": 9},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
}
BOTH = pytest.mark.parametrize("path", list(PATHS))
SEARCH = {"use_beam_search": True, "n": 3}


async def ask(client: httpx.AsyncClient, path: str, **body: Any) -> httpx.Response:
    return await client.post(path, json=PATHS[path] | SEARCH | body)


@BOTH
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"best_of": 3},
        {"best_of": 16, "length_penalty": 0.5, "early_stopping": True},
        {"length_penalty": -10, "early_stopping": "never", "stop_token_ids": [5], "min_tokens": 2},
        {"ignore_eos": True, "include_stop_str_in_output": True, "skip_special_tokens": False},
    ],
)
async def test_a_search_reaches_the_pool_as_one_request(
    client: httpx.AsyncClient, pool: FakePool, path: str, fields: dict
) -> None:
    response = await ask(client, path, **fields, cache_salt="s", priority=4, timeout=7, queue_timeout=6)
    assert response.status_code == 200, response.text
    assert [choice["index"] for choice in response.json()["choices"]] == [0, 1, 2]
    (seen,) = pool.seen
    expected: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    assert seen.request.sampling == SamplingParams(use_beam_search=True, n=3, max_tokens=9, **expected)
    request = seen.request
    assert (request.cache_salt, request.priority, request.timeout_s, request.queue_timeout_s) == (
        "s",
        4,
        7,
        6,
    )


@BOTH
async def test_the_checkpoints_sampling_defaults_are_for_sampling(
    client: httpx.AsyncClient, pool: FakePool, path: str
) -> None:
    pool.defaults = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.1)
    assert (await ask(client, path)).status_code == 200
    assert pool.seen[0].request.sampling == SamplingParams(use_beam_search=True, n=3, max_tokens=9)


NEUTRAL = [
    {"temperature": 0},
    {"temperature": 1},
    {"top_p": 1},
    {"top_k": 0},
    {"top_k": -1},
    {"min_p": 0},
    {"presence_penalty": 0},
    {"frequency_penalty": 0},
    {"repetition_penalty": 1},
    {"seed": 5},
    {"stop": []},
    {"logit_bias": {}},
    {"bad_words": []},
    {"allowed_token_ids": None},
    {"stream": False},
]


@BOTH
@pytest.mark.parametrize("more", NEUTRAL, ids=str)
async def test_values_that_change_nothing_are_accepted(
    client: httpx.AsyncClient, path: str, more: dict
) -> None:
    response = await ask(client, path, **more)
    assert response.status_code == 200, response.text


CONFLICTS = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 1,
    "min_p": 0.1,
    "presence_penalty": 0.1,
    "frequency_penalty": -0.1,
    "repetition_penalty": 1.1,
    "stop": "x",
    "logit_bias": {"5": 1},
    "allowed_token_ids": [5],
    "bad_words": ["x"],
    "repetition_detection": {"max_pattern_size": 2},
    "stream": True,
}


@BOTH
@pytest.mark.parametrize("name", CONFLICTS)
async def test_what_would_change_the_found_outputs_is_refused_by_name(
    client: httpx.AsyncClient, pool: FakePool, path: str, name: str
) -> None:
    response = await ask(client, path, **{name: CONFLICTS[name]})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert f"{name} must be" in error["message"]
    assert not pool.seen


@BOTH
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 2}, "best_of"),
        ({"best_of": 17}, "best_of"),
        ({"n": 17}, "n"),
        ({"length_penalty": 10.1}, "length_penalty"),
        ({"length_penalty": -11}, "length_penalty"),
        ({"length_penalty": "1"}, "length_penalty"),
        ({"early_stopping": "always"}, "early_stopping"),
        ({"early_stopping": 1}, "early_stopping"),
        ({"use_beam_search": 1}, "use_beam_search"),
        ({"use_beam_search": False, "best_of": 4}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
    ids=str,
)
async def test_values_out_of_range_are_refused_by_name(
    client: httpx.AsyncClient, pool: FakePool, path: str, fields: dict, param: str
) -> None:
    response = await ask(client, path, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert not pool.seen


@BOTH
@pytest.mark.parametrize("switch", [{}, {"use_beam_search": False}], ids=str)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length_penalty": 0.9}, "length_penalty must be 1 unless use_beam_search is set"),
        ({"early_stopping": True}, "early_stopping must be false unless use_beam_search is set"),
        ({"early_stopping": "never"}, "early_stopping must be false unless use_beam_search is set"),
    ],
    ids=str,
)
async def test_fields_of_a_search_are_refused_without_one(
    client: httpx.AsyncClient, pool: FakePool, path: str, switch: dict, fields: dict, message: str
) -> None:
    response = await client.post(path, json=PATHS[path] | switch | fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["message"]) == (next(iter(fields)), message)
    assert not pool.seen
