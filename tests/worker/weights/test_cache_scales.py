"""Scales of a quantized KV cache in a checkpoint are found by their names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from splitserve.engine_core.errors import ModelLoadError
from splitserve.worker.weights.cache_scales import read_cache_scales

LAYER = "model.layers.{}.self_attn."


def write(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    return path


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("k_scale", "v_scale"),
        ("attn.k_scale", "attn.v_scale"),
        ("k_proj.k_scale", "v_proj.v_scale"),
        ("k_proj.output_scale", "v_proj.output_scale"),
        ("kv_scale", "attn.kv_scale"),
    ],
)
def test_the_least_and_the_greatest_are_found(key: str, value: str, tmp_path: Path) -> None:
    tensors = {
        LAYER.format(0) + key: torch.tensor(0.5),
        LAYER.format(0) + value: torch.tensor([0.25], dtype=torch.bfloat16),
        LAYER.format(1) + key: torch.tensor([[2.0], [0.125]], dtype=torch.float16),
        LAYER.format(1) + value: torch.tensor(-1.0),
        LAYER.format(0) + "k_proj.weight_scale": torch.tensor(9.0),
        LAYER.format(0) + "q_proj.output_scale": torch.tensor(9.0),
        LAYER.format(0) + "k_proj.input_scale": torch.tensor(9.0),
    }
    assert read_cache_scales(write(tmp_path, tensors)) == (0.125, 2.0)


def test_a_checkpoint_may_have_none(tmp_path: Path) -> None:
    tensors = {"a.k_scale": torch.tensor(-1.0), "a.v_scale": torch.tensor(float("nan")), "b": torch.zeros(2)}
    assert read_cache_scales(write(tmp_path, tensors)) is None


@pytest.mark.parametrize("tensor", [torch.ones(2000), torch.ones(1, dtype=torch.int32)])
def test_what_cannot_be_a_scale_is_refused(tensor: torch.Tensor, tmp_path: Path) -> None:
    with pytest.raises(
        ModelLoadError, match=r"tensor 'a\.k_scale' has dtype .* scales of the KV cache are at most"
    ):
        read_cache_scales(write(tmp_path, {"a.k_scale": tensor}))


def test_an_infinite_scale_is_refused(tmp_path: Path) -> None:
    tensors = {"a.k_scale": torch.tensor([0.5, float("inf")], dtype=torch.float16)}
    with pytest.raises(ModelLoadError, match=r"model\.safetensors: tensor 'a\.k_scale' holds an infinite"):
        read_cache_scales(write(tmp_path, tensors))
