"""POST /v1/responses/input_tokens: as many tokens as the request itself would be told of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from splitserve.frontend.text.answers.detection import with_overrides
from splitserve.frontend.text.answers.formats import AnswerFormats
from tests.frontend.http.app_fixtures import ServerFactory
from tests.frontend.http.fake_pool import FakePool

PATH = "/v1/responses"
TOOLS = [{"type": "function", "name": "now"}]


async def count(client: httpx.AsyncClient, **body: Any) -> int:
    response = await client.post(f"{PATH}/input_tokens", json=body)
    assert response.status_code == 200, response.text
    found = response.json()
    assert found["object"] == "response.input_tokens"
    return int(found["input_tokens"])


async def used(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


@pytest.mark.parametrize(
    "body",
    [
        {"input": "hello"},
        {"input": "hello", "instructions": "Be brief.", "tools": TOOLS},
        {"input": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    ],
    ids=str,
)
async def test_it_counts_what_a_response_would(
    client: httpx.AsyncClient, pool: FakePool, body: dict[str, Any]
) -> None:
    pool.formats = with_overrides(AnswerFormats(), "none", "hermes")
    counted = await count(client, **body)
    assert not pool.seen
    assert counted == (await used(client, **body))["usage"]["input_tokens"]


async def test_an_input_that_leaves_no_room_is_counted_all_the_same(client: httpx.AsyncClient) -> None:
    assert await count(client, input="x" * 240) > 240


async def test_what_is_continued_counts(make_server: ServerFactory, tmp_path: Path) -> None:
    url = await make_server(response_store=str(tmp_path / "responses.db"))
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        body = {"input": "more", "previous_response_id": (await used(client, input="hello"))["id"]}
        counted = await count(client, **body)
        assert counted == (await used(client, **body))["usage"]["input_tokens"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"input": []}, 400, "input"),
        ({"input": "x", "model": "another"}, 404, "model"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, 400, "tools[0].type"),
    ],
    ids=str,
)
async def test_it_refuses_what_a_response_would(
    client: httpx.AsyncClient, body: dict[str, Any], status: int, param: str
) -> None:
    response = await client.post(f"{PATH}/input_tokens", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)
