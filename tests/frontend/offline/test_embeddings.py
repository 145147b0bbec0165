"""LLM.embed: vectors equal those of transformers however a prompt is computed, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from splitserve import LLM
from splitserve.engine_core.errors import ContextLengthError, InvalidRequestError, ModelLoadError
from splitserve.frontend.offline.outputs import EmbeddingRequestOutput
from tests.checkpoints import CheckpointCache, CheckpointSpec
from tests.embeddings import cosines, make_bare, make_embedder, reference_states, reference_vectors

pytestmark = pytest.mark.system

PROMPTS = [[7], [7, 8, 9], [20] * 17, [5, 300, 11, 12] * 12, list(range(3, 100))]


@pytest.fixture(scope="module")
def generator(checkpoints: CheckpointCache) -> Path:
    return checkpoints.get(CheckpointSpec("qwen3"))


@pytest.fixture(scope="module")
def embedder(generator: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_embedder(generator, tmp_path_factory.mktemp("embedder") / "model")


@pytest.fixture(scope="module")
def llm(embedder: Path) -> Iterator[LLM]:
    # Steps so small that the longer prompts are computed in several.
    with LLM(
        str(embedder),
        dtype="float32",
        num_threads=1,
        num_blocks=64,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        use_tqdm=False,
    ) as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(generator: Path) -> npt.NDArray[np.float32]:
    return reference_vectors(generator, PROMPTS)


def vectors(outputs: list[EmbeddingRequestOutput]) -> npt.NDArray[np.float32]:
    return np.array([output.outputs.embedding for output in outputs], np.float32)


def test_vectors_equal_those_of_transformers(llm: LLM, expected: npt.NDArray[np.float32]) -> None:
    ours = vectors(llm.embed(PROMPTS, use_tqdm=False, normalize=False))
    assert np.abs(ours - expected).max() < 1e-4 * np.abs(expected).max()
    assert cosines(ours, expected).min() > 0.999999


@pytest.mark.parametrize("mode", ["mean_tokens", "weightedmean_tokens"])
def test_decoders_may_read_all_tokens(generator: Path, tmp_path: Path, mode: str) -> None:
    folder = make_embedder(generator, tmp_path / "model", normalizes=False)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    # Prompts of several steps, with beginnings that others have computed, and rows that have to wait.
    settings: dict[str, Any] = {"num_blocks": 12, "block_size": 16, "max_num_batched_tokens": 32}
    many = [*PROMPTS, [*PROMPTS[4][:80], 7]]
    with LLM(str(folder), dtype="float32", num_threads=1, use_tqdm=False, **settings) as llm:
        outputs = llm.embed(many * 2, use_tqdm=False)
    ours = vectors(outputs)
    assert not any(output.num_cached_tokens for output in outputs)
    assert (ours[: len(many)] == ours[len(many) :]).all()
    expected = np.array([_pooled(states, mode) for states in reference_states(generator, many)])
    assert np.abs(ours[: len(many)] - expected).max() < 1e-4 * np.abs(expected).max()


def _pooled(states: npt.NDArray[np.float32], mode: str) -> npt.NDArray[np.float32]:
    weights = np.arange(1.0, len(states) + 1) if mode == "weightedmean_tokens" else np.ones(len(states))
    return np.asarray((states * weights[:, None]).sum(axis=0) / weights.sum(), np.float32)


def test_they_have_length_one_as_the_checkpoint_says(llm: LLM, expected: npt.NDArray[np.float32]) -> None:
    outputs = llm.embed(PROMPTS, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == PROMPTS
    np.testing.assert_allclose(np.linalg.norm(vectors(outputs), axis=1), 1, rtol=1e-6)
    assert cosines(vectors(outputs), expected).min() > 0.999999


def test_cached_prefixes_and_neighbours_change_no_bit(llm: LLM) -> None:
    alone = [vectors(llm.embed(prompt, use_tqdm=False)) for prompt in PROMPTS]
    again = llm.embed(PROMPTS * 8, use_tqdm=False)
    assert again[4].num_cached_tokens > 0
    for output, first in zip(vectors(again), alone * 8, strict=True):
        assert (output == first[0]).all()


def test_fewer_dimensions_are_the_first_ones_at_length_one(llm: LLM) -> None:
    whole = vectors(llm.embed(PROMPTS, use_tqdm=False, normalize=False))[:, :10]
    short = vectors(llm.embed(PROMPTS, use_tqdm=False, dimensions=10))
    np.testing.assert_allclose(short, whole / np.linalg.norm(whole, axis=1, keepdims=True), rtol=1e-5)


def test_texts_get_the_tokenizers_special_tokens(llm: LLM) -> None:
    text = "hello there"
    ids = llm.get_tokenizer().encode(text, True)
    (as_text,) = llm.embed(text, use_tqdm=False)
    (as_ids,) = llm.embed(ids, use_tqdm=False)
    assert as_text.prompt_token_ids == ids
    assert as_text.outputs == as_ids.outputs


def test_a_prompt_may_fill_the_context(llm: LLM) -> None:
    longest = llm._served.info.max_model_len
    (output,) = llm.embed([3] * longest, use_tqdm=False)
    assert len(output.prompt_token_ids) == longest
    with pytest.raises(ContextLengthError):
        llm.embed([3] * (longest + 1), use_tqdm=False)


@pytest.mark.parametrize("dimensions", [0, -1, 97, 2.0, "3", True])
def test_dimensions_have_a_range(llm: LLM, dimensions: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"dimensions must be an integer from 1 to \d+, got"):
        llm.embed("a", use_tqdm=False, dimensions=dimensions)


def test_normalize_is_a_switch(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="normalize must be True, False or None, got 'no'"):
        llm.embed("a", use_tqdm=False, normalize=cast(bool, "no"))


def test_it_generates_no_text(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="makes embeddings, not text"):
        llm.generate("a", use_tqdm=False)
    assert len(llm.embed("a", use_tqdm=False)) == 1


def start(model: Path, task: str = "auto", tensor: int = 1, pipeline: int = 1) -> LLM:
    return LLM(
        str(model),
        task=task,
        dtype="float32",
        num_threads=1,
        num_blocks=64,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        use_tqdm=False,
    )


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)])
def test_ranks_that_share_a_model_make_one_vector(
    embedder: Path, expected: npt.NDArray[np.float32], tensor: int, pipeline: int
) -> None:
    with start(embedder, tensor=tensor, pipeline=pipeline) as llm:
        ours = vectors(llm.embed(PROMPTS, use_tqdm=False, normalize=False))
    assert cosines(ours, expected).min() > 0.999999


def test_a_bare_model_embeds_without_being_told(
    generator: Path, expected: npt.NDArray[np.float32], tmp_path: Path
) -> None:
    bare = make_bare(generator, tmp_path / "model")
    with start(bare) as llm:
        assert cosines(vectors(llm.embed(PROMPTS, use_tqdm=False)), expected).min() > 0.999999
    with pytest.raises(ModelLoadError, match="names a model without an output head"):
        start(bare, task="generate")


def test_a_model_that_generates_embeds_only_if_told_to(
    generator: Path, expected: npt.NDArray[np.float32]
) -> None:
    refused = pytest.raises(InvalidRequestError, match="generates text; an engine started with --task embed")
    with start(generator) as llm, refused:
        llm.embed("a", use_tqdm=False)
    with start(generator, task="embed") as llm:
        assert cosines(vectors(llm.embed(PROMPTS, use_tqdm=False)), expected).min() > 0.999999
