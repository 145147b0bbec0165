"""gpt-oss as it is published: experts in MXFP4."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.errors import ConfigError, ModelLoadError
from splitserve.worker.parallel.shares import check_shares
from splitserve.worker.weights import loading
from tests.checkpoints import CheckpointCache, CheckpointSpec
from tests.mxfp4 import write_mxfp4
from tests.worker.models.cases import prompt
from tests.worker.models.driver import Driver, Row
from tests.worker.models.test_parity import reference_logits

SPEC = CheckpointSpec("gptoss", {"hidden_size": 64, "intermediate_size": 96}, torch.bfloat16)


@pytest.fixture(scope="module")
def folder(checkpoints: CheckpointCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("mxfp4")
    write_mxfp4(checkpoints.get(SPEC), target)
    return target


@pytest.fixture
def tokens() -> list[int]:
    return prompt(331, 45)


def test_in_float32_it_is_the_model_with_the_same_numbers(
    folder: Path, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces smaller than an expert."""
    monkeypatch.setattr(loading, "CHUNK_BYTES", 1000)
    found = Driver(folder / "mxfp4").prefill_logits(tokens)
    assert torch.equal(found, Driver(folder / "plain").prefill_logits(tokens))
    expected = reference_logits(folder / "plain", torch.float32, tokens)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_in_bfloat16_experts_are_multiplied_as_they_are_stored(
    folder: Path, tokens: list[int], quantization: str
) -> None:
    found = Driver(folder / "mxfp4", torch.bfloat16, quantization)
    exact = reference_logits(folder / "plain", torch.float32, tokens)
    error = (found.prefill_logits(tokens) - exact).square().mean().sqrt()
    allowed = (reference_logits(folder / "plain", torch.bfloat16, tokens) - exact).square().mean().sqrt()
    # The other matrices are rounded further.
    assert error <= {"none": 2, "int8": 4, "int4": 30}[quantization] * allowed


def test_a_row_is_the_same_bits_in_any_company(folder: Path, tokens: list[int]) -> None:
    driver = Driver(folder / "mxfp4", torch.bfloat16)
    row, other, alone = Row(tokens), Row(tokens[::-1]), Row(tokens)
    expected = driver.run((alone, 45))
    found = [driver.run((other, 5), (row, count))[5:] for count in (7, 20, 1, 1)]
    assert torch.equal(torch.cat([*found, driver.run((row, 16))]), expected)


def test_transformers_reads_the_same_numbers(folder: Path, tokens: list[int]) -> None:
    from transformers import AutoModelForCausalLM, Mxfp4Config

    model = AutoModelForCausalLM.from_pretrained(
        folder / "mxfp4",
        dtype=torch.bfloat16,
        attn_implementation="eager",
        quantization_config=Mxfp4Config(dequantize=True),
    ).eval()
    with torch.inference_mode():
        found = model(torch.tensor([tokens]), use_cache=False).logits[0].float()
    assert torch.equal(found, reference_logits(folder / "plain", torch.bfloat16, tokens))


def test_its_size_is_counted_in_weights(folder: Path) -> None:
    assert Driver(folder / "mxfp4").model.num_params == Driver(folder / "plain").model.num_params


def changed_tensors(folder: Path, target: Path, **changes: torch.Tensor | None) -> Path:
    tensors = load_file(folder / "mxfp4" / "model.safetensors")
    for name, tensor in changes.items():
        full = f"model.layers.1.mlp.experts.{name}"
        del tensors[full]
        if tensor is not None:
            tensors[full] = tensor
    save_file(tensors, target / "model.safetensors")
    (target / "config.json").write_text((folder / "mxfp4" / "config.json").read_text())
    return target


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"down_proj_scales": None}, "missing tensor 'model.layers.1.mlp.experts.down_proj_scales'$"),
        ({"down_proj_blocks": torch.zeros(5, 64, 2, 16, dtype=torch.uint8)}, r"has shape \[5, 64, 2, 16\], "),
        ({"down_proj_scales": torch.zeros(5, 64, 3)}, "has dtype F32, MXFP4 has U8"),
        (
            {"down_proj_scales": torch.full((5, 64, 3), 255, dtype=torch.uint8)},
            r"experts\.down_proj_scales' holds a scale that is no number, or too large",
        ),
        (
            {"gate_up_proj_scales": torch.zeros(5, 192, dtype=torch.uint8)},
            r"config.json asks for \[5, 192, 2\]",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(
    changes: dict[str, torch.Tensor | None], text: str, folder: Path, tmp_path: Path
) -> None:
    path = changed_tensors(folder, tmp_path, **changes)
    with pytest.raises(ModelLoadError, match=text):
        Driver(path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "quant_method must be 'mxfp4', got 'gptq'"),
        ({"quantization_config": {}}, "quant_method must be 'mxfp4', got ''"),
        ({"quantization_config": "mxfp4"}, "quantization_config must be an object"),
        ({"intermediate_size": 80}, r"intermediate_size \(80\) must be a multiple of 32"),
        ({"compression_config": {"format": "mxfp4"}}, "compression_config must be absent"),
    ],
)
def test_other_quantisations_are_refused_by_name(
    change: dict[str, object], text: str, folder: Path, tmp_path: Path
) -> None:
    config = json.loads((folder / "mxfp4" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelLoadError, match=text):
        read_model_config(tmp_path)


def test_ranks_hold_whole_groups(folder: Path) -> None:
    config = read_model_config(folder / "mxfp4")
    with pytest.raises(ConfigError, match="48 columns of the experts, but MXFP4 quantizes groups of 32"):
        check_shares(config, 2, "none")
