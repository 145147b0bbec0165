"""An encoder and a cross-encoder behind HTTP, as users of the OpenAI SDK and of rerankers meet them."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from openai import BadRequestError, OpenAI

from tests.embeddings import cosines
from tests.encoders import MAX_LEN, add_modules, make_encoder, pooled, reference_states
from tests.system.processes import Server, engine, serve

pytestmark = pytest.mark.system

FLAGS = ("--dtype", "float32", "--num-threads", "1", "--served-model-name", "encoder")
TEXTS = ["the quick brown fox", "how are you", "the lazy dog jumps"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_modules(make_encoder(tmp_path_factory.mktemp("encoder") / "model"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    flags = ("--model", str(folder), *FLAGS)
    with tempfile.TemporaryDirectory(prefix="sst-") as path, serve(Path(path), flags) as running:
        yield running


@pytest.fixture
def sdk(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def test_texts_become_the_vectors_of_transformers(sdk: OpenAI, folder: Path) -> None:
    ids = [sdk.post("/../tokenize", body={"prompt": text}, cast_to=object)["tokens"] for text in TEXTS]
    answer = sdk.embeddings.create(model="encoder", input=TEXTS)
    ours = np.array([each.embedding for each in answer.data], np.float32)
    assert cosines(ours, pooled(reference_states(folder, ids), "mean_tokens")).min() > 0.999999
    assert answer.usage.prompt_tokens == sum(map(len, ids))


def test_many_texts_come_back_in_their_order(sdk: OpenAI) -> None:
    ids = [[4 + i % 290, 4 + i // 290, *[9] * (i % 7)] for i in range(2048)]
    answer = sdk.embeddings.create(model="encoder", input=ids)
    assert [each.index for each in answer.data] == list(range(2048))
    for i in (0, 511, 512, 2047):
        assert (
            sdk.embeddings.create(model="encoder", input=ids[i]).data[0].embedding == answer.data[i].embedding
        )


def test_a_text_longer_than_the_positions_is_refused_or_cut(sdk: OpenAI) -> None:
    with pytest.raises(BadRequestError) as refused:
        sdk.embeddings.create(model="encoder", input=[[5], [5] * (MAX_LEN + 1)])
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input[1]")
    cut = sdk.embeddings.create(
        model="encoder", input="fox " * 999, extra_body={"truncate_prompt_tokens": -1}
    )
    assert cut.usage.prompt_tokens == MAX_LEN


def test_vectors_outlive_their_engine(folder: Path, sdk: OpenAI) -> None:
    ids = [[4 + i % 290, *[9] * (i % 90)] for i in range(2000)]
    expected = [each.embedding for each in sdk.embeddings.create(model="encoder", input=ids).data]
    found: list[list[float]] = []
    flags = ("--model", str(folder), *FLAGS)
    with (
        tempfile.TemporaryDirectory(prefix="sst-") as path,
        serve(Path(path), flags) as running,
        OpenAI(base_url=running.base_url, api_key="unused", max_retries=0, timeout=120) as client,
    ):

        def ask() -> None:
            answer = client.embeddings.create(model="encoder", input=ids)
            found.extend(each.embedding for each in answer.data)

        asking = threading.Thread(target=ask)
        asking.start()
        running.engine.popen.kill()
        running.engine.popen.wait()
        with engine(Path(path), *flags):
            asking.join(timeout=120)
    assert found == expected


def test_a_cross_encoder_orders_documents(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "model", settings={"num_labels": 1}, head="ForSequenceClassification")
    flags = ("--model", str(folder), *FLAGS)
    with (
        tempfile.TemporaryDirectory(prefix="sst-") as path,
        serve(Path(path), flags) as running,
        OpenAI(base_url=running.base_url, api_key="unused", max_retries=0, timeout=60) as client,
    ):
        body = {"query": "how are you", "documents": TEXTS}
        ranked = client.post("/rerank", body=body, cast_to=object)["results"]
        scored = client.post("/score", body={"text_1": "how are you", "text_2": TEXTS}, cast_to=object)
        scores = [each["score"] for each in scored["data"]]
        assert [each["relevance_score"] for each in ranked] == sorted(scores, reverse=True)
        assert [scores[each["index"]] for each in ranked] == sorted(scores, reverse=True)
        classes = client.post("/../classify", body={"input": TEXTS}, cast_to=object)["data"]
        assert {each["num_classes"] for each in classes} == {1}
        with pytest.raises(BadRequestError, match="scores or classifies texts, it embeds none"):
            client.embeddings.create(model="encoder", input="a")
