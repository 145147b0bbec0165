"""A model in larger sizes says what it said before, and its head foresees it as before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks import enlarged_demo
from benchmarks.compare.checkpoint import config, random_weights
from benchmarks.compare.shapes import Shape
from training.eagle3 import READ_LAYERS, Eagle3

SMALL = Shape("llama", 64, 5, 4, 2, 32, 96, 300, 512, 1e4, 0)
LARGE = Shape("llama", 256, 7, 16, 8, 128, 400, 900, 512, 1e4, 0)
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small model, and the same in larger sizes."""
    small, large = (tmp_path_factory.mktemp("demo") / name for name in ("small", "large"))
    weights = random_weights(SMALL, 0)
    weights[EMBEDDING] *= 8
    _write(small, weights, SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(enlarged_demo.SIZES, "medium", LARGE)
        count = enlarged_demo.write(small, large, "medium", None)
    assert count == LARGE.num_parameters
    return small, large


def test_a_larger_model_says_the_same_and_no_further_token(models: tuple[Path, Path]) -> None:
    tokens = torch.arange(4, 104).reshape(2, 50)
    small, large = (_run(folder, tokens)[0].log_softmax(-1) for folder in models)
    assert (large[..., SMALL.vocab_size :] < -100).all()
    torch.testing.assert_close(large[..., : SMALL.vocab_size], small, rtol=0, atol=2e-5)
    assert small.std() > 0.3


def test_more_layers_add_nothing(models: tuple[Path, Path], tmp_path: Path) -> None:
    enlarged_demo.write(models[0], tmp_path, "demo", 9)
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"] == 9
    tokens = torch.arange(4, 104).reshape(2, 50)
    assert torch.equal(_run(tmp_path, tokens)[0], _run(models[0], tokens)[0])


def test_a_larger_head_foresees_the_same(models: tuple[Path, Path], tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    torch.manual_seed(0)
    head = Eagle3(_config(models[0]), load_file(models[0] / "model.safetensors")[EMBEDDING].float())
    _write(small, {name: tensor.bfloat16() for name, tensor in head.state_dict().items()}, SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(enlarged_demo.SIZES, "head", LARGE._replace(num_layers=1))
        patch.setattr(enlarged_demo, "DEMO_MODEL", models[0])
        patch.setattr(enlarged_demo, "HEAD_VOCAB_SIZE", 450)
        enlarged_demo.write(small, large, "head", None)
    # Its own output head is the first part of the larger model's.
    table = load_file(models[1] / "model.safetensors")[EMBEDDING]
    assert torch.equal(load_file(large / "model.safetensors")["lm_head.weight"], table[:450])
    tokens = torch.arange(4, 104).reshape(2, 50)
    said = [_foreseen(model, head, tokens) for model, head in zip(models, (small, large), strict=True)]
    torch.testing.assert_close(said[1][..., : SMALL.vocab_size], said[0], rtol=0, atol=2e-5)
    assert (said[1][..., SMALL.vocab_size :] < -100).all()
    assert said[0].std() > 0.1


def _write(folder: Path, weights: dict[str, torch.Tensor], shape: Shape) -> None:
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(shape)))


def _config(folder: Path) -> LlamaConfig:
    return LlamaConfig(**json.loads((folder / "config.json").read_text()))


def _run(folder: Path, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return fp32 logits, and the hidden states that a head reads, side by side."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    states: list[torch.Tensor] = []
    for layer in READ_LAYERS:
        # The last state of the source is in front of a layer that adds nothing, or of the last norm.
        module = model.model.layers[layer - 1]
        module.register_forward_hook(lambda _module, _inputs, output: states.append(output))
    with torch.inference_mode():
        return model(tokens).logits, torch.cat(states, -1)


def _foreseen(model: Path, folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    """Return log probabilities of two rounds of a head, one behind the other."""
    table = load_file(model / "model.safetensors")[EMBEDDING].float()
    head = Eagle3(_config(folder), table)
    stored = load_file(folder / "model.safetensors")
    head.load_state_dict({name: stored[name].float() for name in head.state_dict()})
    is_text = torch.ones(len(tokens), 49, 49, dtype=torch.bool).tril()
    with torch.inference_mode():
        rounds = head(_run(model, tokens)[1][:, :-1], tokens[:, 1:], is_text, 2)
    # Nobody's state stands in the first place of a later round, so it has no mark.
    return torch.cat([logits[:, 1:] for logits in rounds], 1).log_softmax(-1)
