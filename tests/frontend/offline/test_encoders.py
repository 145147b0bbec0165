"""LLM.embed with encoders: vectors equal those of transformers, whatever runs beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from splitserve import LLM
from splitserve.engine_core.errors import ConfigError, ContextLengthError, InvalidRequestError, ModelLoadError
from splitserve.frontend.offline.jobs import TokenizationKwargs
from splitserve.frontend.offline.outputs import EmbeddingRequestOutput
from tests.embeddings import cosines
from tests.encoders import add_modules, make_encoder, pooled, reference_states

pytestmark = pytest.mark.system

BUDGET = 64
PROMPTS = [[7], [7, 8, 9], [20] * 17, [5, 230, 11, 12] * 12, list(range(4, 4 + BUDGET))]


def start(folder: Path, **settings: object) -> LLM:
    return LLM(
        str(folder),
        **{  # type: ignore[arg-type]
            "dtype": "float32",
            "num_threads": 1,
            "max_num_seqs": 4,
            "max_num_batched_tokens": BUDGET,
            "use_tqdm": False,
            **settings,
        },
    )


def vectors(outputs: list[EmbeddingRequestOutput]) -> npt.NDArray[np.float32]:
    return np.array([output.outputs.embedding for output in outputs], np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_modules(make_encoder(tmp_path_factory.mktemp("encoder") / "model"), max_tokens=100)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with start(folder) as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(folder: Path) -> npt.NDArray[np.float32]:
    return pooled(reference_states(folder, PROMPTS), "mean_tokens")


def test_each_token_has_a_vector(llm: LLM, folder: Path) -> None:
    outputs = llm.encode(PROMPTS, pooling_task="token_embed", use_tqdm=False)
    for output, found in zip(outputs, reference_states(folder, PROMPTS), strict=True):
        states = found.numpy()
        assert output.outputs.data.shape == states.shape
        assert np.abs(output.outputs.data - states).max() < 1e-4 * np.abs(states).max()


def test_vectors_equal_those_of_transformers(llm: LLM, expected: npt.NDArray[np.float32]) -> None:
    ours = vectors(llm.embed(PROMPTS, use_tqdm=False, normalize=False))
    assert np.abs(ours - expected).max() < 1e-4 * np.abs(expected).max()
    assert cosines(ours, expected).min() > 0.999999
    np.testing.assert_allclose(
        np.linalg.norm(vectors(llm.embed(PROMPTS, use_tqdm=False)), axis=1), 1, rtol=1e-6
    )


def test_neighbours_change_no_bit(llm: LLM) -> None:
    alone = [vectors(llm.embed(prompt, use_tqdm=False)) for prompt in PROMPTS]
    again = vectors(llm.embed(PROMPTS * 8, use_tqdm=False))
    for vector, first in zip(again, alone * 8, strict=True):
        assert (vector == first[0]).all()


def test_texts_get_the_special_tokens_of_the_template(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    (output,) = llm.embed("The quick fox", use_tqdm=False)
    assert [tokenizer.token_name(i) for i in output.prompt_token_ids] == [
        "[CLS]",
        "the",
        "quick",
        "fox",
        "[SEP]",
    ]
    (as_ids,) = llm.embed(output.prompt_token_ids, use_tqdm=False)
    assert as_ids.outputs == output.outputs


def test_a_prompt_longer_than_a_step_is_refused_or_cut(llm: LLM) -> None:
    with pytest.raises(ContextLengthError, match=f"{BUDGET} tokens"):
        llm.embed([5] * (BUDGET + 1), use_tqdm=False)
    cut = TokenizationKwargs(truncate_prompt_tokens=10, truncation_side="right")
    (output,) = llm.embed("fox " * 200, use_tqdm=False, tokenization_kwargs=cut)
    tokenizer = llm.get_tokenizer()
    names = [tokenizer.token_name(i) for i in output.prompt_token_ids]
    assert names == ["[CLS]", *["fox"] * 8, "[SEP]"]


def test_it_generates_no_text(llm: LLM, folder: Path) -> None:
    with pytest.raises(InvalidRequestError, match="makes embeddings, not text"):
        llm.generate("a", use_tqdm=False)
    with pytest.raises(ModelLoadError, match="names a model without an output head"):
        start(folder, task="generate")


def test_positions_bound_a_prompt_where_steps_do_not(folder: Path) -> None:
    with start(folder, max_num_batched_tokens=512) as llm:
        assert len(llm.embed([5] * 100, use_tqdm=False)) == 1
        with pytest.raises(ContextLengthError, match="100 tokens"):
            llm.embed([5] * 101, use_tqdm=False)


@pytest.mark.parametrize(
    ("kind", "mode"), [("roberta", "cls_token"), ("xlm-roberta", "max_tokens"), ("bert", "lasttoken")]
)
def test_other_kinds_and_modes(kind: str, mode: str, tmp_path: Path) -> None:
    folder = add_modules(make_encoder(tmp_path / "model", kind), mode, normalizes=False)
    with start(folder) as llm:
        ours = vectors(llm.embed(PROMPTS, use_tqdm=False))
    expected = pooled(reference_states(folder, PROMPTS), mode)
    assert np.abs(ours - expected).max() < 1e-4 * np.abs(expected).max()


def test_vectors_go_through_dense_layers(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    folder = add_modules(make_encoder(tmp_path / "model"), normalizes=False, dense=(20, 7))
    x = torch.from_numpy(pooled(reference_states(folder, PROMPTS), "mean_tokens"))
    for name in ("2_Dense", "3_Dense"):
        layer = load_file(folder / name / "model.safetensors")
        x = torch.tanh(x @ layer["linear.weight"].T + layer["linear.bias"])
    with start(folder) as llm:
        ours = vectors(llm.embed(PROMPTS, use_tqdm=False))
        alone = vectors(llm.embed(PROMPTS[2], use_tqdm=False))
    assert ours.shape == (5, 7)
    assert np.abs(ours - x.numpy()).max() < 1e-4
    assert (ours[2] == alone[0]).all()


def test_dense_layers_have_to_fit(tmp_path: Path) -> None:
    folder = add_modules(make_encoder(tmp_path / "model"), dense=(20,))
    config = folder / "2_Dense" / "config.json"
    config.write_text(config.read_text().replace("48", "40"))
    with pytest.raises(ModelLoadError, match="in_features must be 48, the size of what it reads, got 40"):
        start(folder)


def test_ranks_share_an_encoder(folder: Path, expected: npt.NDArray[np.float32]) -> None:
    with start(folder, tensor_parallel_size=2) as llm:
        ours = vectors(llm.embed(PROMPTS, use_tqdm=False, normalize=False))
    assert cosines(ours, expected).min() > 0.999999


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size must be 1"),
        ({"attention_backend": "torch"}, "torch: it reads a KV cache, and encoders have none"),
        ({"kv_offload_gb": 0.1}, "--kv-offload-gb must be 0: BertModel has no KV cache"),
    ],
)
def test_what_an_encoder_cannot_do_is_refused(folder: Path, settings: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        start(folder, **settings)
