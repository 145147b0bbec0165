"""What the library's layers may ask for that is not computed here is refused, with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from splitserve.engine_core.errors import ModelLoadError
from splitserve.worker.attention.cpu import CpuAttention
from splitserve.worker.generic.attention import UnsupportedAttentionError, window_of
from splitserve.worker.generic.check import check_agreement
from splitserve.worker.generic.model import TransformersModel
from splitserve.worker.generic.probes import RmsNorm, activation_of, gated_mlp_of, rms_norm_of
from tests.checkpoints import VOCAB_SIZE
from tests.worker.generic.library_models import write_checkpoint
from tests.worker.models.driver import Driver

_SMALL: dict[str, object] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def refused(path: Path) -> str:
    with pytest.raises(ModelLoadError) as error:
        Driver(path, model_impl="transformers")
    return str(error.value)


def write_config(path: Path, model_type: str, **fields: object) -> Path:
    """Write a config.json without weights: what is wrong is said before any are looked for."""
    import transformers

    config = transformers.AutoConfig.for_model(model_type, **fields)
    architecture = transformers.AutoModelForCausalLM._model_mapping[type(config)].__name__
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**config.to_dict(), "architectures": [architecture]}))
    return path


@pytest.mark.parametrize(
    ("model_type", "fields", "reason"),
    [
        ("jamba", {}, "it keeps a state per sequence"),
        ("minicpm3", {}, "differ in size"),
        ("diffllama", {}, "4 of its 2 layers have attention"),
        ("granite_swa", {}, "its attention asks for s_aux"),
        ("doge", {}, "it makes a mask of its own"),
        ("flex_olmo", {"pad_token_id": None}, "as of experts or convolutions"),
        ("mpt", {"d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}, "0 of its 2 layers"),
        ("roberta", {}, "its mask is neither causal nor a sliding window"),
    ],
)
def test_an_architecture_that_cannot_be_computed_is_refused(
    model_type: str, fields: dict[str, object], reason: str, tmp_path: Path
) -> None:
    small = {} if model_type == "mpt" else _SMALL
    path = write_config(tmp_path / "model", model_type, **{**small, "vocab_size": VOCAB_SIZE, **fields})
    message = refused(path)
    assert "cannot be served by the transformers backend" in message
    assert reason in message


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"architectures": ["NobodysForCausalLM"]}, "makes a GPTNeoXForCausalLM of it"),
        ({"architectures": ["NobodysForCausalLM"], "model_type": "nobody"}, "cannot read its config.json"),
        (
            {
                "architectures": ["NobodysForCausalLM"],
                "model_type": "nobody",
                "auto_map": {"AutoConfig": "configuration_nobody.NobodyConfig"},
            },
            "only by Python code of the checkpoint, which is never executed",
        ),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}},
            "its layers look at values while they run",
        ),
        ({"vocab_size": VOCAB_SIZE - 1}, "config.json asks for [330, 64]"),
        ({"hidden_size": 48}, "heads of 12 elements"),
        ({"intermediate_size": 95}, "config.json asks for [95, 64]"),
        ({"num_hidden_layers": 3}, "missing tensor"),
        ({"is_encoder_decoder": True}, "it has an encoder and a decoder"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    changed: dict[str, object], reason: str, tmp_path: Path
) -> None:
    path = write_checkpoint("gpt_neox", tmp_path / "model", **changed)
    with pytest.raises(ModelLoadError) as error:
        Driver(path, model_impl="transformers")
    assert reason in str(error.value)


def test_code_of_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    path = write_checkpoint(
        "gpt_neox", tmp_path / "model", auto_map={"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    )
    (path / "modeling_own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    Driver(path)
    assert not (tmp_path / "ran").exists()


def test_layers_that_mix_tokens_of_requests_are_noticed(tmp_path: Path) -> None:
    driver = Driver(write_checkpoint("gpt_neox", tmp_path / "model"))
    model = driver.model
    assert isinstance(model, TransformersModel)
    check_agreement(model, driver.config, CpuAttention())

    class Shift(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x.roll(1, dims=1)

    class AloneOnly(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x if x.shape[1] == 1 else x

    for other in (Shift(), AloneOnly()):
        model.base.final_layer_norm = other
        with pytest.raises(ModelLoadError, match="differ from those of the library"):
            check_agreement(model, driver.config, CpuAttention())


def causal(batch: object, head: object, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    return kv <= q


@pytest.mark.parametrize("max_len", [1, 2, 7, 300])
@pytest.mark.parametrize("window", [1, 2, 5, 100])
def test_windows_are_read_from_what_tokens_see(window: int, max_len: int) -> None:
    def windowed(batch: object, head: object, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return (kv <= q) & (kv > q - window)

    assert window_of(windowed, max_len) == (0 if window >= max_len else window)
    assert window_of(causal, max_len) == 0


@pytest.mark.parametrize(
    "rule",
    [
        lambda b, h, q, kv: (kv <= q) & (kv // 16 == q // 16),
        lambda b, h, q, kv: (kv <= q) & ((kv > q - 20) | (kv < 4)),
        lambda b, h, q, kv: kv <= q + 1,
        lambda b, h, q, kv: kv < q,
        lambda b, h, q, kv: torch.ones_like(kv, dtype=torch.bool),
    ],
    ids=["chunks", "sinks", "the next one", "not itself", "all"],
)
def test_other_masks_are_refused(rule: object) -> None:
    with pytest.raises(UnsupportedAttentionError):
        window_of(rule, 200)  # type: ignore[arg-type]


class Norm(nn.Module):
    def __init__(self, offset: float = 0.0, power: float = 2.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(16, device="meta"))
        self.eps = 1e-5
        self._offset, self._power = offset, power

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = x * torch.rsqrt(x.abs().pow(self._power).mean(-1, keepdim=True) + self.eps)
        return normed * (self.weight + self._offset)


def test_norms_are_known_by_what_they_compute() -> None:
    assert rms_norm_of(Norm()) == RmsNorm(1e-5, 0.0)
    assert rms_norm_of(Norm(offset=1.0)) == RmsNorm(1e-5, 1.0)
    assert rms_norm_of(Norm(offset=0.5)) is None
    assert rms_norm_of(Norm(power=3.0)) is None
    assert rms_norm_of(nn.Linear(4, 4)) is None


def test_activations_are_known_by_what_they_compute() -> None:
    assert activation_of(nn.GELU()) == "gelu"
    assert activation_of(nn.GELU("tanh")) == "gelu_tanh"
    assert activation_of(nn.SiLU()) == "silu"
    assert activation_of(nn.ReLU()) is None
    assert activation_of(nn.Dropout()) is None


class Mlp(nn.Module):
    def __init__(self, swapped: bool = False) -> None:
        super().__init__()
        with torch.device("meta"):
            self.gate_proj, self.up_proj = nn.Linear(8, 12, bias=False), nn.Linear(8, 12, bias=False)
            self.down_proj = nn.Linear(12, 8, bias=False)
        self.act_fn = nn.SiLU()
        self._swapped = swapped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)
        if self._swapped:
            gate, up = up, gate
        return self.down_proj(self.act_fn(gate) * up)


def test_gated_mlps_are_known_by_what_they_compute() -> None:
    found = gated_mlp_of(Mlp())
    assert found is not None
    assert (found.inner, found.outer, found.activation) == (("gate_proj", "up_proj"), "down_proj", "silu")
    assert gated_mlp_of(Mlp(swapped=True)) is None
