"""POST /v1/embeddings as a user of the OpenAI SDK meets it, on the demo model told to embed."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from openai import BadRequestError, OpenAI

from tests.system.processes import Server, serve

pytestmark = pytest.mark.system

SIZE = 256


@pytest.fixture(scope="module")
def embedder() -> Iterator[Server]:
    flags = ("--task", "embed", "--num-blocks", "512")
    with tempfile.TemporaryDirectory(prefix="sst-") as path, serve(Path(path), flags) as running:
        yield running


@pytest.fixture
def sdk(embedder: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=embedder.base_url, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def name(sdk: OpenAI) -> str:
    return sdk.models.list().data[0].id


def test_a_text_becomes_one_vector_of_length_one(sdk: OpenAI, name: str) -> None:
    answer = sdk.embeddings.create(model=name, input="Once upon a time")
    (only,) = answer.data
    assert (only.index, only.object, answer.object, answer.model) == (0, "embedding", "list", name)
    assert len(only.embedding) == SIZE
    assert np.linalg.norm(only.embedding) == pytest.approx(1, abs=1e-6)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0


def test_both_formats_hold_the_same_numbers(sdk: OpenAI, name: str) -> None:
    numbers = sdk.embeddings.create(model=name, input="Once upon a time", encoding_format="float")
    body = {"model": name, "input": "Once upon a time", "encoding_format": "base64"}
    raw = sdk.post("/embeddings", body=body, cast_to=object)["data"][0]["embedding"]
    decoded = np.frombuffer(base64.b64decode(raw), "<f4")
    assert decoded.tolist() == numbers.data[0].embedding


def test_texts_ids_and_lists_of_both_agree(sdk: OpenAI, name: str) -> None:
    ids = sdk.post("/../tokenize", body={"prompt": "Once upon a time"}, cast_to=object)["tokens"]
    other = sdk.post("/../tokenize", body={"prompt": "Hello"}, cast_to=object)["tokens"]
    text, one, texts, many = (
        sdk.embeddings.create(model=name, input=given).data
        for given in ("Once upon a time", ids, ["Hello", "Once upon a time"], [other, ids])
    )
    assert text[0].embedding == one[0].embedding == texts[1].embedding == many[1].embedding
    assert [each.embedding for each in texts] == [each.embedding for each in many]


def test_many_texts_come_back_in_their_order(sdk: OpenAI, name: str) -> None:
    texts = [f"The number {i} and its neighbours" for i in range(2048)]
    answer = sdk.embeddings.create(model=name, input=texts)
    assert [each.index for each in answer.data] == list(range(2048))
    for i in (0, 511, 512, 1500, 2047):
        alone = sdk.embeddings.create(model=name, input=texts[i])
        assert alone.data[0].embedding == answer.data[i].embedding


def test_dimensions_and_length_are_the_clients_choice(sdk: OpenAI, name: str) -> None:
    raw = sdk.embeddings.create(model=name, input="Hello", extra_body={"normalize": False}).data[0].embedding
    short = sdk.embeddings.create(model=name, input="Hello", dimensions=8).data[0].embedding
    assert np.linalg.norm(raw) != pytest.approx(1, abs=0.01)
    np.testing.assert_allclose(short, np.array(raw[:8]) / np.linalg.norm(raw[:8]), rtol=1e-5)


def test_a_long_input_is_refused_or_truncated(sdk: OpenAI, name: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        sdk.embeddings.create(model=name, input=[[5], [5] * 3000])
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == "input[1]"
    cut = sdk.embeddings.create(model=name, input=[5] * 3000, extra_body={"truncate_prompt_tokens": 4})
    same = sdk.embeddings.create(model=name, input=[5] * 4)
    assert cut.usage.prompt_tokens == 4
    assert cut.data[0].embedding == same.data[0].embedding


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        ({"input": []}, "input", "at least 1"),
        ({"input": ""}, "input", "at least one token"),
        ({"input": ["a", ""]}, "input[1]", "at least one token"),
        ({"input": [1, "a"]}, "input", "only texts, only token ids or only lists"),
        ({"input": [[1], []]}, "input[1]", ""),
        ({"input": [[2048]]}, "input[0]", "from 0 to 2047"),
        ({"input": ["a"] * 2049}, "input", "at most 2048"),
        ({"input": 5}, "input", "expected"),
        ({}, "input", "input"),
        ({"input": "a", "dimensions": 0}, "dimensions", "from 1 to 256"),
        ({"input": "a", "dimensions": 257}, "dimensions", "from 1 to 256"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "base64"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "1 to"),
        ({"input": "a", "priority": 2**40}, "priority", ""),
    ],
)
def test_what_is_wrong_is_named(
    sdk: OpenAI, name: str, body: dict[str, object], param: str, text: str
) -> None:
    with pytest.raises(BadRequestError) as refused:
        sdk.post("/embeddings", body={"model": name, **body}, cast_to=object)
    assert refused.value.param == param
    assert text in refused.value.message
    assert sdk.embeddings.create(model=name, input="Hello").data


def test_it_generates_no_text(sdk: OpenAI, name: str) -> None:
    for ask in (
        lambda: sdk.chat.completions.create(model=name, messages=[{"role": "user", "content": "Hi"}]),
        lambda: sdk.completions.create(model=name, prompt="Hi"),
        lambda: sdk.completions.create(model=name, prompt="Hi", stream=True),
        lambda: sdk.responses.create(model=name, input="Hi"),
    ):
        with pytest.raises(BadRequestError, match="makes embeddings, not text"):
            ask()


def test_a_model_that_generates_says_how_to_embed(client: OpenAI, model: str) -> None:
    with pytest.raises(
        BadRequestError, match="generates text; an engine started with --task embed"
    ) as refused:
        client.embeddings.create(model=model, input="Hello")
    assert refused.value.param == "model"


def test_a_text_is_nearest_to_itself(sdk: OpenAI, name: str) -> None:
    texts = ["The capital of France", "What is 7 plus 5?", "Once upon a time"]
    body = {"model": name, "query": texts[1], "documents": texts}
    answer = sdk.post("/rerank", body=body, cast_to=object)
    vectors = [np.array(each.embedding) for each in sdk.embeddings.create(model=name, input=texts).data]
    scores = {each["index"]: each["relevance_score"] for each in answer["results"]}
    assert answer["results"][0]["index"] == 1
    assert [scores[i] for i in range(3)] == pytest.approx(
        [vectors[i] @ vectors[1] for i in range(3)], abs=1e-5
    )
    pair = {"model": name, "text_1": texts[1], "text_2": texts}
    data = sdk.post("/score", body=pair, cast_to=object)["data"]
    assert [each["score"] for each in data] == pytest.approx([scores[i] for i in range(3)], abs=1e-9)
