"""A request that waits for its model's engine before it is prepared: its times run, and its model stays."""

from __future__ import annotations

import httpx
import pytest

from tests.frontend.http.fake_pool import FakePool
from tests.frontend.openai.test_beam_fields import BOTH, PATHS


@BOTH
@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"timeout": 5}, 504, "timeout"),
        ({"queue_timeout": 5}, 503, "queue_timeout"),
        ({"timeout": 7, "queue_timeout": 5}, 503, "queue_timeout"),
    ],
)
async def test_a_timeout_that_passes_meanwhile_ends_the_request(
    client: httpx.AsyncClient, pool: FakePool, path: str, fields: dict[str, int], status: int, code: str
) -> None:
    pool.away_s = 6.0
    response = await client.post(path, json=PATHS[path] | fields)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert not pool.seen


@BOTH
async def test_an_engine_gets_what_is_left_of_the_times(
    client: httpx.AsyncClient, pool: FakePool, path: str
) -> None:
    pool.away_s = 6.0
    response = await client.post(path, json=PATHS[path] | {"timeout": 7, "queue_timeout": 6.5})
    assert response.status_code == 200, response.text
    (seen,) = pool.seen
    assert (seen.request.timeout_s, seen.request.queue_timeout_s) == (1.0, 0.5)


@BOTH
async def test_a_request_names_the_model_that_its_prompt_is_for(
    client: httpx.AsyncClient, pool: FakePool, path: str
) -> None:
    await client.post(path, json=PATHS[path])
    assert pool.seen[0].request.model == pool.model.identity


@BOTH
async def test_a_timeout_that_passes_goes_before_the_engine_that_has_not_come(
    client: httpx.AsyncClient, pool: FakePool, path: str
) -> None:
    pool.away_s, pool.state = 6.0, "lost"
    response = await client.post(path, json=PATHS[path] | {"timeout": 5})
    assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
