"""POST /v1/embeddings over scripted vectors: groups, numbers, faults of an engine, and clients that leave."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

import httpx
import pytest

from splitserve.engine_core.errors import EngineRequestError
from splitserve.frontend.app import create_app
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.http.slices import SliceQueue
from splitserve.frontend.openai.vectors import vector_run
from tests.frontend.http.app_fixtures import make_config, with_body_writers
from tests.frontend.http.fake_pool import FakePool

PATH = "/v1/embeddings"


@pytest.fixture
def pool() -> FakePool:
    return FakePool(embedding_size=3)


@pytest.fixture
async def http(pool: FakePool) -> AsyncIterator[httpx.AsyncClient]:
    app = with_body_writers(create_app(make_config(), pool))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://frontend") as client:
        yield client


async def test_numbers_are_those_of_the_engine(http: httpx.AsyncClient) -> None:
    raw = (await http.post(PATH, json={"input": [5], "normalize": False})).json()
    assert raw["data"] == [{"index": 0, "embedding": [0.0, 5.0, 10.0], "object": "embedding"}]
    whole = (await http.post(PATH, json={"input": [5]})).json()
    assert whole["data"][0]["embedding"] == pytest.approx([0, 1 / math.sqrt(5), 2 / math.sqrt(5)])
    short = (await http.post(PATH, json={"input": [5], "dimensions": 2})).json()
    assert short["data"][0]["embedding"] == pytest.approx([0, 1])


async def test_a_model_says_what_it_is_for(http: httpx.AsyncClient) -> None:
    (card, *_) = (await http.get("/v1/models")).json()["data"]
    assert card["task"] == "embed"


async def test_a_vector_of_zeros_stays_one(http: httpx.AsyncClient) -> None:
    answer = (await http.post(PATH, json={"input": [0]})).json()
    assert answer["data"][0]["embedding"] == [0.0, 0.0, 0.0]


async def test_inputs_run_in_groups_and_keep_their_order(
    http: httpx.AsyncClient, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_run, "INPUTS_PER_GROUP", 4)
    body = {"input": [[i] for i in range(10)], "normalize": False, "priority": 3, "cache_salt": "s"}
    answer = (await http.post(PATH, json=body)).json()
    assert [each["embedding"][1] for each in answer["data"]] == list(range(10))
    assert answer["usage"] == {"prompt_tokens": 10, "total_tokens": 10}
    assert [len(each.request.prompt_token_ids) for each in pool.seen] == [1] * 10
    assert {(each.request.priority, each.request.cache_salt, each.request.pools) for each in pool.seen} == {
        (3, "s", True)
    }
    assert len(pool.closed) == 10
    # What was done is not lost to a queue that has filled up meanwhile.
    assert [each.request.continues for each in pool.seen] == [False] * 4 + [True] * 6


async def test_many_short_texts_let_others_in(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0
    turn = SliceQueue.turn

    async def counted(slices: SliceQueue) -> None:
        nonlocal turns
        turns += 1
        await turn(slices)

    monkeypatch.setattr(SliceQueue, "turn", counted)
    assert (await http.post(PATH, json={"input": ["x" * 200] * 100})).status_code == 200
    assert turns >= 100 * 200 // 4096


async def test_text_is_refused_before_anything_is_asked(http: httpx.AsyncClient, pool: FakePool) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
    ):
        refused = await http.post(path, json=body)
        assert refused.status_code == 400
        assert "the model 'org/demo' makes embeddings, not text" in refused.text
    assert pool.seen == []


async def test_the_input_that_fails_is_named(
    http: httpx.AsyncClient, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_run, "INPUTS_PER_GROUP", 2)
    of_pool = pool._deltas

    async def deltas(request: GenerationRequest) -> AsyncIterator[OutputDelta]:
        if request.prompt_token_ids == [7]:
            error = EngineRequestError("the model's output is not a number")
            error.code = "numerical_error"
            raise error
        async for delta in of_pool(request):
            yield delta

    monkeypatch.setattr(pool, "_deltas", deltas)
    refused = await http.post(PATH, json={"input": [[1], [2], [3], [7]]})
    assert refused.status_code == 500
    assert (refused.json()["error"]["code"], refused.json()["error"]["param"]) == (
        "numerical_error",
        "input[3]",
    )
    assert len(pool.closed) == 4
    assert (await http.post(PATH, json={"input": [[1]]})).status_code == 200


async def test_a_vector_of_another_size_is_no_answer(
    http: httpx.AsyncClient, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deltas(request: GenerationRequest) -> AsyncIterator[OutputDelta]:
        yield OutputDelta(0, finish_reason="length", pooled=b"\0" * 8)

    monkeypatch.setattr(pool, "_deltas", deltas)
    refused = await http.post(PATH, json={"input": [1]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (500, "request_failed")


async def test_long_answers_are_whole(http: httpx.AsyncClient, pool: FakePool) -> None:
    pool.embedding_size = 3000
    answer = (await http.post(PATH, json={"input": [[1], [2]], "normalize": False})).json()
    assert [each["embedding"] for each in answer["data"]] == [
        [float(i) for i in range(3000)],
        [2.0 * i for i in range(3000)],
    ]
