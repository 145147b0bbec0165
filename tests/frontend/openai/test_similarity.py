"""POST /rerank and /score over scripted vectors: order, cosines, forms of a request, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
import pytest

from splitserve.engine_core.ipc.codec import pack_float32
from splitserve.frontend.app import create_app
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from tests.frontend.http.app_fixtures import make_config, with_body_writers
from tests.frontend.http.fake_pool import BOS, FakePool

# By the first letter of a text; lengths must not count.
VECTORS = {"n": [0.0, 2.0], "e": [3.0, 0.0], "s": [0.0, -1.0], "o": [1.0, 1.0], "z": [0.0, 0.0]}


class Compass(FakePool):
    """Texts that begin with n, e and s point north, east and south, and those with o between n and e."""

    async def _deltas(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        assert request.prompt_token_ids[0] == BOS
        vector = VECTORS[chr(request.prompt_token_ids[1])]
        yield OutputDelta(0, finish_reason="length", pooled=pack_float32(vector))


@pytest.fixture
def pool() -> FakePool:
    return Compass(embedding_size=2)


@pytest.fixture
async def http(pool: FakePool) -> AsyncIterator[httpx.AsyncClient]:
    app = with_body_writers(create_app(make_config(), pool))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://frontend") as client:
        yield client


async def ask(http: httpx.AsyncClient, path: str, **body: Any) -> Any:
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_the_nearest_documents_come_first(http: httpx.AsyncClient, path: str) -> None:
    answer = await ask(http, path, query="north", documents=["south", "east", {"text": "next"}, "other"])
    assert [(each["index"], each["document"]["text"]) for each in answer["results"]] == [
        (2, "next"),
        (3, "other"),
        (1, "east"),
        (0, "south"),
    ]
    scores = [each["relevance_score"] for each in answer["results"]]
    assert scores == pytest.approx([1, 0.5**0.5, 0, -1])
    assert (
        answer["usage"]["prompt_tokens"]
        == answer["usage"]["total_tokens"]
        == 5 + len("northsoutheastnextother")
    )
    assert answer["id"].startswith("rerank-")
    assert answer["model"] == "org/demo"


async def test_the_best_few_without_their_texts(http: httpx.AsyncClient) -> None:
    answer = await ask(
        http, "/rerank", query="n", documents=["s", "n1", "e", "n2"], top_n=2, return_documents=False
    )
    # Equal ones in the order in which they were given.
    assert [(each["index"], each["document"]) for each in answer["results"]] == [(1, None), (3, None)]
    many = await ask(http, "/rerank", query="n", documents=["s", "e"], top_n=100)
    assert len(many["results"]) == 2


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("north", "north", [1]),
        ("north", ["south", "east", "other"], [-1, 0, 0.5**0.5]),
        (["north"], ["south", "n"], [-1, 1]),
        (["north", "south", "east"], ["n", "n", "o"], [1, -1, 0.5**0.5]),
        ("north", "zero", [0]),
    ],
)
async def test_texts_are_compared_with_one_or_pair_by_pair(
    http: httpx.AsyncClient, path: str, first: Any, second: Any, expected: list[float]
) -> None:
    answer = await ask(http, path, text_1=first, text_2=second)
    assert [each["score"] for each in answer["data"]] == pytest.approx(expected)
    assert [each["index"] for each in answer["data"]] == list(range(len(expected)))
    assert answer["data"][0]["object"] == "score"


@pytest.mark.parametrize(
    ("path", "body", "param", "text"),
    [
        ("/rerank", {"query": "n", "documents": []}, "documents", "at least 1"),
        ("/rerank", {"query": "n", "documents": ["n"] * 2049}, "documents", "at most 2048 texts, got 2049"),
        ("/rerank", {"query": "n", "documents": ["n"], "top_n": 0}, "top_n", "at least 1, got 0"),
        ("/rerank", {"query": 1, "documents": ["n"]}, "query", "expected a string"),
        ("/rerank", {"documents": ["n"]}, "query", "query"),
        ("/rerank", {"query": "n", "documents": [{}]}, "documents[0].text", "text"),
        ("/rerank", {"query": "n", "documents": ["n", "n" * 300]}, "documents[1]", "maximum context length"),
        ("/rerank", {"query": "n" * 300, "documents": ["n"]}, "query", "maximum context length"),
        ("/score", {"text_1": ["n", "n"], "text_2": ["n"]}, "text_1", "as many as text_2, got 2 and 1"),
        ("/score", {"text_1": "n", "text_2": ["n"] * 2049}, "text_2", "at most 2048 texts"),
        ("/score", {"text_1": "n", "text_2": []}, "text_2", "at least 1"),
    ],
)
async def test_what_is_wrong_is_named(
    http: httpx.AsyncClient, pool: FakePool, path: str, body: dict[str, Any], param: str, text: str
) -> None:
    refused = await http.post(path, json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
    assert text in refused.json()["error"]["message"]
    assert pool.seen == []


async def test_a_model_that_generates_compares_nothing(http: httpx.AsyncClient, pool: FakePool) -> None:
    pool.embedding_size = 0
    for path, body in (
        ("/rerank", {"query": "n", "documents": ["n"]}),
        ("/score", {"text_1": "n", "text_2": "n"}),
    ):
        refused = await http.post(path, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
        assert "--task embed" in refused.text
