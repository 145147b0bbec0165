"""POST /pooling over scripted vectors: what is made for each task, in which form, and what is refused."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest

from splitserve.frontend.app import create_app
from tests.frontend.http.app_fixtures import make_config, with_body_writers
from tests.frontend.http.fake_pool import FakePool

PATH = "/pooling"


@pytest.fixture
def pool() -> FakePool:
    return FakePool(embedding_size=3)


@pytest.fixture
async def http(pool: FakePool) -> AsyncIterator[httpx.AsyncClient]:
    app = with_body_writers(create_app(make_config(max_answer_values=1024), pool))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://frontend") as client:
        yield client


async def post(http: httpx.AsyncClient, **body: Any) -> Any:
    response = await http.post(PATH, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def numbers(text: str) -> list[float]:
    found: list[float] = np.frombuffer(base64.b64decode(text), "<f4").tolist()
    return found


async def test_each_input_has_its_vector(http: httpx.AsyncClient) -> None:
    found = await post(http, input=[[5], [6, 7]], normalize=False)
    assert found["id"].startswith("pool-")
    assert found["object"] == "list"
    assert found["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert found["data"] == [
        {"index": 0, "data": [0.0, 5.0, 10.0], "object": "pooling"},
        {"index": 1, "data": [0.0, 6.0, 12.0], "object": "pooling"},
    ]
    assert await post(http, input=[[5], [6, 7]], normalize=False, task="embed") | {"id": 0, "created": 0} == (
        found | {"id": 0, "created": 0}
    )
    whole = await post(http, input=[5], dimensions=2)
    assert whole["data"][0]["data"] == [0.0, 1.0]
    encoded = await post(http, input=[5], normalize=False, encoding_format="base64")
    assert numbers(encoded["data"][0]["data"]) == [0, 5, 10]


async def test_each_token_may_have_one(http: httpx.AsyncClient, pool: FakePool) -> None:
    found = await post(http, input=[[5], [6, 7]], task="token_embed")
    assert [each["data"] for each in found["data"]] == [[[0, 5, 10]], [[0, 6, 12], [0, 7, 14]]]
    assert all(each.request.pools_tokens for each in pool.seen)
    encoded = await post(http, input=[6, 7], task="token_embed", encoding_format="base64")
    assert numbers(encoded["data"][0]["data"]) == [0, 6, 12, 0, 7, 14]
    whole = await post(http, input=[5], task="token_embed", normalize=True)
    assert np.linalg.norm(whole["data"][0]["data"][0]) == pytest.approx(1)


async def test_labels_have_probabilities(http: httpx.AsyncClient, pool: FakePool) -> None:
    pool.embedding_size, pool.labels = 0, ["a", "b"]
    (found,) = (await post(http, input=[1]))["data"]
    assert found["data"] == pytest.approx([1 / (1 + np.e), np.e / (1 + np.e)])
    encoded = await post(http, input=[1], encoding_format="base64", task="classify")
    assert numbers(encoded["data"][0]["data"]) == pytest.approx(found["data"])
    response = await http.post(PATH, json={"input": [1], "task": "token_embed"})
    assert response.json()["error"]["param"] == "model"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"task": "classify"}, "model"),
        ({"task": "token_embed", "dimensions": 2}, "dimensions"),
        ({"dimensions": 4}, "dimensions"),
        ({"task": "reward"}, "task"),
        # 342 tokens of 3 numbers.
        ({"task": "token_embed", "input": [[1] * 171] * 2}, "input"),
        ({"input": []}, "input"),
    ],
    ids=str,
)
async def test_what_it_cannot_do_is_refused(
    http: httpx.AsyncClient, pool: FakePool, body: dict[str, Any], param: str
) -> None:
    response = await http.post(PATH, json={"input": [1]} | body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert not pool.seen
