"""POST /rerank, /score and /classify over a scripted model with labels: pairs, order, and what is refused."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
import pytest

from splitserve.engine_core.ipc.codec import pack_float32
from splitserve.frontend.app import create_app
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.text.chat.pair_template import PairTemplate
from tests.frontend.http.app_fixtures import make_config, with_body_writers
from tests.frontend.http.fake_pool import BOS, FakePool, PlainTemplate


class Lengths(FakePool):
    """A pair's score is the length of its second text; label i of a text has i times its length."""

    async def _deltas(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        size = len(request.prompt_token_ids) - (request.second_at or 1)
        numbers = [float(size * (i + (len(self.labels) == 1))) for i in range(len(self.labels))]
        yield OutputDelta(0, finish_reason="length", pooled=pack_float32(numbers))


@pytest.fixture
def pool() -> FakePool:
    return Lengths(labels=["relevant"])


@pytest.fixture
async def http(pool: FakePool) -> AsyncIterator[httpx.AsyncClient]:
    app = with_body_writers(create_app(make_config(), pool))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://frontend") as client:
        yield client


async def ask(http: httpx.AsyncClient, path: str, **body: Any) -> Any:
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def refused(http: httpx.AsyncClient, path: str, **body: Any) -> Any:
    answer = await http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


async def test_query_and_document_are_one_prompt(http: httpx.AsyncClient, pool: FakePool) -> None:
    answer = await ask(http, "/v1/rerank", query="ab", documents=["c", "ddd", {"text": "ee"}])
    assert [(each["index"], each["relevance_score"]) for each in answer["results"]] == [
        (1, 3),
        (2, 2),
        (0, 1),
    ]
    first = pool.seen[0].request
    assert (first.prompt_token_ids, first.second_at) == ([BOS, *b"ab", 257, *b"c"], 4)
    assert answer["usage"]["prompt_tokens"] == 3 * 4 + 6


async def test_texts_are_scored_pair_by_pair(http: httpx.AsyncClient) -> None:
    answer = await ask(http, "/v1/score", text_1=["a", "b"], text_2=["cc", "d"])
    assert [each["score"] for each in answer["data"]] == [2, 1]
    answer = await ask(http, "/score", text_1="a", text_2="cccc")
    assert [each["score"] for each in answer["data"]] == [4]


async def test_a_pair_that_is_too_long_is_named_or_cut(http: httpx.AsyncClient, pool: FakePool) -> None:
    error = await refused(http, "/rerank", query="n", documents=["n", "n" * 300])
    assert (error["param"], error["code"]) == ("documents[1]", "context_length_exceeded")
    assert pool.seen == []
    cut = await ask(http, "/rerank", query="n", documents=["n", "n" * 300], truncate_prompt_tokens=13)
    assert [each["relevance_score"] for each in cut["results"]] == [10, 1]


async def test_labels_have_probabilities(http: httpx.AsyncClient, pool: FakePool) -> None:
    pool.labels = ["bad", "good"]
    answer = await ask(http, "/classify", input=["a", "bb"])
    share = 1 / (1 + math.exp(-1))
    assert answer["data"][0] == {
        "index": 0,
        "label": "good",
        "probs": pytest.approx([1 - share, share]),
        "num_classes": 2,
    }
    assert answer["data"][1]["probs"][1] == pytest.approx(1 / (1 + math.exp(-2)))
    assert answer["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    assert answer["id"].startswith("classify-")
    error = await refused(http, "/rerank", query="n", documents=["n"])
    assert "has 2 labels, and a score is of one; use /classify" in error["message"]


async def test_a_model_with_labels_does_nothing_else(http: httpx.AsyncClient, pool: FakePool) -> None:
    for path, body in (
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        error = await refused(http, path, **body)
        assert error["param"] == "model"
        assert "scores or classifies texts" in error["message"]
    assert pool.seen == []


async def test_models_without_labels_classify_nothing(http: httpx.AsyncClient, pool: FakePool) -> None:
    pool.labels, pool.embedding_size = [], 3
    error = await refused(http, "/classify", input="a")
    assert (error["param"], error["message"]) == (
        "model",
        "the model 'org/demo' has no labels to classify by",
    )


async def test_a_judge_is_told_what_to_judge_by(http: httpx.AsyncClient, pool: FakePool) -> None:
    error = await refused(http, "/rerank", query="a", documents=["b"], instruction="c")
    assert error["param"] == "instruction"
    template = PlainTemplate()
    pool.pair_template = PairTemplate(template)
    two: dict[str, dict[str, Any]] = {
        "/rerank": {"query": "a", "documents": ["b"]},
        "/score": {"text_1": "a", "text_2": "b"},
    }
    for path, body in two.items():
        await ask(http, path, **body, instruction="c")
        await ask(http, path, **body)
    said = [[(each["role"], each["content"]) for each in messages] for messages, _ in template.calls]
    pair = [("query", "a"), ("document", "b")]
    assert said == [[("system", "c"), *pair], pair] * 2
    # The document alone is cut, and the template's end stays.
    text = "query: a\ndocument: bb\nassistant: "
    long: dict[str, Any] = {"query": "a", "documents": ["b" * 40]}
    await ask(http, "/rerank", **long, truncate_prompt_tokens=len(text))
    assert bytes(pool.seen[-1].request.prompt_token_ids).decode() == text
    error = await refused(http, "/rerank", **long, truncate_prompt_tokens=len(text) - 2)
    assert error["code"] == "context_length_exceeded"
