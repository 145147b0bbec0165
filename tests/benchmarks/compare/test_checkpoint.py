"""Models made for the comparison: loadable, of the size they claim, and with a text for every id."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from benchmarks.compare.checkpoint import config, layer_sizes, main, random_weights, textless_ids
from benchmarks.compare.shapes import SHAPES, Experts, Shape
from benchmarks.compare.tensors import num_weight_bytes, read_bf16
from tests.benchmarks.compare.conftest import SMALL


def test_transformers_finds_every_weight_where_it_expects_it(small_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(small_model, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert torch.isfinite(model(torch.tensor([[300, 301, 302]])).logits).all()


def test_experts_lie_where_transformers_expects_them(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    shape = SMALL._replace(architecture="qwen3_moe", experts=Experts(5, 2, 40))
    weights = random_weights(shape, 0)
    assert sum(tensor.numel() for tensor in weights.values() if tensor.ndim == 2) == shape.num_parameters
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(config(shape)))
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert model.config.num_experts_per_tok == 2


def test_the_shapes_that_are_compared_multiply_as_many_weights() -> None:
    dense, sparse = SHAPES["dense-250m"], SHAPES["experts-1b"]
    assert sparse.experts is not None
    routers = sparse.num_layers * sparse.hidden_size * sparse.experts.total
    assert sparse.num_active_parameters - routers == dense.num_active_parameters == dense.num_parameters
    assert round(dense.num_parameters / 1e6) == 247
    assert round(sparse.num_parameters / 1e6) == 1003


def test_every_id_has_a_text_of_its_own(small_model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(small_model / "tokenizer.json"))
    texts = [tokenizer.id_to_token(i) for i in range(SMALL.vocab_size)]
    assert None not in texts
    assert len(set(texts)) == SMALL.vocab_size
    assert all(tokenizer.decode([i], skip_special_tokens=False) for i in range(SMALL.vocab_size))
    assert tokenizer.get_vocab_size() == SMALL.vocab_size


def test_the_count_of_parameters_is_that_of_the_matrices(small_model: Path) -> None:
    weights = random_weights(SMALL, 0)
    assert sum(tensor.numel() for tensor in weights.values() if tensor.ndim == 2) == SMALL.num_parameters
    assert num_weight_bytes(small_model) == sum(tensor.nbytes for tensor in weights.values())


def test_what_is_no_text_by_itself_is_never_the_likeliest(small_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    tokenizer = Tokenizer.from_file(str(small_model / "tokenizer.json"))
    textless = textless_ids(tokenizer)
    assert {0, 1, 2, 3} < set(textless)
    assert len(textless) < 140
    model = AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.float32)
    logits = model(torch.arange(300, SMALL.vocab_size)[None]).logits[0]
    assert logits[:, textless].abs().max() == 0
    assert logits.max(dim=1).values.min() > 0


@pytest.mark.parametrize(("name", "millions"), [("tiny", 2), ("small", 134), ("medium", 596)])
def test_the_shapes_have_the_sizes_of_their_models(name: str, millions: int) -> None:
    assert round(SHAPES[name].num_parameters / 1e6) == millions


def test_keys_and_values_of_a_token_are_counted_for_all_layers() -> None:
    assert SHAPES["tiny"].kv_bytes_per_token == 4 * 2 * 64 * 2


def test_only_qwen3_normalises_heads() -> None:
    llama = Shape("llama", *SMALL[1:])
    assert set(layer_sizes(SMALL)) - set(layer_sizes(llama)) == {"self_attn.q_norm", "self_attn.k_norm"}


def test_weights_read_without_torch_are_the_ones_written(small_model: Path) -> None:
    written = random_weights(SMALL, 0)
    tokenizer = Tokenizer.from_file(str(small_model / "tokenizer.json"))
    written["model.embed_tokens.weight"][textless_ids(tokenizer)] = 0
    found = dict(read_bf16(small_model))
    assert found.keys() == written.keys()
    for name, values in found.items():
        assert torch.equal(torch.from_numpy(values), written[name].float()), name


def test_a_folder_that_is_named_like_no_shape_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "large")])
    assert "must be one of tiny, small, medium, dense-250m, experts-1b, got 'large'" in capsys.readouterr()[1]
