"""Encoders against transformers: hidden states, batches, and what no rank can share."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.errors import ConfigError, ModelLoadError
from splitserve.worker.attention.cpu import CpuAttention
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.models.base import Model
from splitserve.worker.models.placement import Placement
from splitserve.worker.models.registry import ModelUses, load_model
from splitserve.worker.parallel.shares import check_stages
from tests.encoders import KINDS, MAX_LEN, VOCAB_SIZE, make_encoder, reference_states

LENGTHS = [1, 5, 33, 70, MAX_LEN]
# As it comes with the checkpoints; null takes the names of transformers away.
PUBLISHED: dict[str, object] = {
    "n_embd": 48,
    "n_head": 6,
    "n_layer": 3,
    "n_inner": 80,
    "n_positions": MAX_LEN,
    "layer_norm_epsilon": 1e-12,
    "rotary_emb_base": 1000,
    "activation_function": "swiglu",
    **dict.fromkeys(
        (
            "hidden_size",
            "num_attention_heads",
            "num_hidden_layers",
            "intermediate_size",
            "max_position_embeddings",
            "layer_norm_eps",
            "rope_parameters",
        )
    ),
}


def prompts(lengths: list[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    # Without the padding token, which a prompt does not hold.
    return [torch.randint(4, VOCAB_SIZE, (n,), generator=generator).tolist() for n in lengths]


def load(folder: Path, dtype: torch.dtype = torch.float32, quantization: str = "none") -> Model:
    placement = Placement(CpuDevice(), CpuAttention())
    config = read_model_config(folder)
    return load_model(
        config, dtype, placement, lambda loaded, total: None, quantization, uses=ModelUses(has_head=False)
    )


def run(model: Model, batch: list[list[int]], outputs: list[int] | None = None) -> torch.Tensor:
    """Return the hidden states of a batch of whole prompts, or those of some of its tokens."""
    lengths = [len(prompt) for prompt in batch]
    meta = AttentionMetadata(
        positions=torch.cat([torch.arange(n, dtype=torch.int32) for n in lengths]),
        slot_mapping=torch.empty(0, dtype=torch.int32),
        block_tables=torch.empty(len(batch), 0, dtype=torch.int32),
        cu_seqlens_q=torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
    )
    token_ids = torch.tensor([token for prompt in batch for token in prompt], dtype=torch.int32)
    wanted = None if outputs is None else torch.tensor(outputs, dtype=torch.int32)
    return model.forward(token_ids, meta, [], wanted).clone()


def change_config(folder: Path, into: Path, settings: dict[str, object]) -> None:
    """Write a config.json like another one; null takes a field away."""
    config = json.loads((folder / "config.json").read_text()) | settings
    kept = {name: value for name, value in config.items() if value is not None}
    (into / "config.json").write_text(json.dumps(kept))


def described(config: ModelConfig) -> ModelConfig:
    """What a config says of the model, wherever it lies."""
    return msgspec.structs.replace(config, path="")


@pytest.fixture(scope="module")
def all_kinds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes an encoder of each kind once."""
    root = tmp_path_factory.mktemp("encoders")

    @functools.cache
    def folder_of(kind: str) -> Path:
        return make_encoder(root / kind, kind)

    return folder_of


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, all_kinds: Callable[[str], Path]) -> Path:
    return all_kinds(request.param)


def test_states_equal_those_of_transformers(folder: Path) -> None:
    batch = prompts(LENGTHS)
    ours = run(load(folder), batch).split(LENGTHS)
    for mine, theirs in zip(ours, reference_states(folder, batch), strict=True):
        assert (mine - theirs).abs().max() < 1e-4 * theirs.abs().max()


def test_rounding_errors_are_no_larger_than_torchs(folder: Path) -> None:
    batch = prompts(LENGTHS)
    exact = torch.cat(reference_states(folder, batch))
    torchs = torch.cat(reference_states(folder, batch, torch.bfloat16)).float()
    ours = run(load(folder, torch.bfloat16), batch).float()
    assert (ours - exact).square().mean() < 4 * (torchs - exact).square().mean()
    assert torch.cosine_similarity(ours, exact).min() > 0.99


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_prompt_has_the_same_bits_in_every_batch(folder: Path, dtype: torch.dtype) -> None:
    model, batch = load(folder, dtype), prompts([*LENGTHS, 17, 17])
    together = run(model, batch).split([len(prompt) for prompt in batch])
    for prompt, states in zip(batch, together, strict=True):
        assert torch.equal(run(model, [prompt]), states)


def test_only_some_tokens_may_be_finished(folder: Path) -> None:
    model, batch = load(folder), prompts([9, 4, 20])
    whole = run(model, batch)
    assert torch.equal(run(model, batch, [0, 9, 13, 32]), whole[[0, 9, 13, 32]])


def test_quantized_weights_come_close(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "model", settings={"initializer_range": 0.1}, dtype=torch.bfloat16)
    batch = prompts([40, 7])
    plain, ours = run(load(folder, torch.bfloat16), batch), run(load(folder, torch.bfloat16, "int8"), batch)
    assert torch.cosine_similarity(plain.float(), ours.float()).min() > 0.99


def test_a_head_for_masked_tokens_is_not_loaded(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "model", head="ForMaskedLM")
    batch = prompts([12])
    (theirs,) = reference_states(folder, batch)
    assert (run(load(folder), batch) - theirs).abs().max() < 1e-4 * theirs.abs().max()


def test_no_pipeline_shares_an_encoder(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"--pipeline-parallel-size must be 1 for .*Model, got 2"):
        check_stages(read_model_config(folder), 2)


LEARNED = ("bert", "roberta", "xlm-roberta")
REFUSED: list[tuple[tuple[str, ...], dict[str, object], str]] = [
    (LEARNED, {"position_embedding_type": "relative_key"}, "position_embedding_type must be 'absolute'"),
    (LEARNED, {"hidden_act": "relu"}, "hidden_act must be gelu or .*, got 'relu'"),
    (LEARNED, {"type_vocab_size": 0}, "type_vocab_size must be an integer from 1"),
    (LEARNED, {"layer_norm_eps": -1}, "layer_norm_eps must be a number from 0"),
    (tuple(KINDS), {"is_decoder": True}, "is_decoder must be false"),
    (tuple(KINDS), {"add_cross_attention": True}, "add_cross_attention must be false"),
    (
        tuple(KINDS),
        {"num_attention_heads": 5},
        r"num_attention_heads \(5\) does not divide hidden_size \(48\)",
    ),
    (tuple(KINDS), {"num_attention_heads": 4}, "head_dim must be a multiple of 8"),
    (tuple(KINDS), {"max_position_embeddings": 0}, "max_position_embeddings must be an integer from"),
    (tuple(KINDS), {"model_type": "electra"}, "model_type must be"),
    (
        tuple(KINDS),
        {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 16}},
        r"quantization_config \(gptq\) is supported for native architectures of decoders only",
    ),
    (
        ("modernbert",),
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        "rope_scaling must be absent",
    ),
    (("modernbert",), {"hidden_activation": "silu"}, "hidden_activation must be gelu or"),
    (("modernbert",), {"layer_types": ["full_attention"]}, "layer_types must name full_attention or"),
    (("modernbert",), {"local_attention": 1}, "local_attention must be an integer from 2"),
    (("nomic-bert",), {"hidden_act": "gelu"}, "hidden_act must be silu or swish, got 'gelu'"),
    (("nomic-bert",), {"rope_parameters": {"rope_type": "other"}}, "rope_type must be one of"),
    (("nomic-bert",), {**PUBLISHED, "prenorm": True}, "prenorm must be false or absent"),
    (("nomic-bert",), {**PUBLISHED, "qkv_proj_bias": True}, "qkv_proj_bias must be false or absent"),
    (("nomic-bert",), {**PUBLISHED, "num_experts": 8}, "num_experts must be 0 or absent"),
    (("nomic-bert",), {**PUBLISHED, "rotary_emb_fraction": 0.5}, "rotary_emb_fraction must be 1"),
    (("nomic-bert",), {**PUBLISHED, "activation_function": "gelu"}, "activation_function must be 'swiglu'"),
    (("nomic-bert",), {**PUBLISHED, "rotary_emb_scale_base": 512}, "rotary_emb_scale_base must be absent"),
]


@pytest.mark.parametrize(
    ("kind", "settings", "text"),
    [(kind, settings, text) for kinds, settings, text in REFUSED for kind in kinds],
    ids=str,
)
def test_what_is_not_supported_is_refused(
    all_kinds: Callable[[str], Path], tmp_path: Path, kind: str, settings: dict[str, object], text: str
) -> None:
    change_config(all_kinds(kind), tmp_path, settings)
    with pytest.raises(ModelLoadError, match=text):
        read_model_config(tmp_path)


def test_nomics_published_names_mean_the_same(all_kinds: Callable[[str], Path], tmp_path: Path) -> None:
    folder = all_kinds("nomic-bert")
    change_config(folder, tmp_path, PUBLISHED)
    ours, theirs = read_model_config(tmp_path), read_model_config(folder)
    assert described(ours) == described(theirs)
    change_config(folder, tmp_path, {**PUBLISHED, "rotary_scaling_factor": 2, "max_trained_positions": 50})
    assert read_model_config(tmp_path).max_model_len == 50


def test_gelu_may_be_the_tanh_form(all_kinds: Callable[[str], Path], tmp_path: Path) -> None:
    change_config(all_kinds("bert"), tmp_path, {"hidden_act": "gelu_new"})
    assert read_model_config(tmp_path).activation == "gelu_tanh"


def test_positions_begin_behind_the_padding_token(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "model", "roberta", {"pad_token_id": 7, "max_position_embeddings": 48})
    config = read_model_config(folder)
    assert config.max_model_len == 40
    batch = prompts([40])
    (theirs,) = reference_states(folder, [[token if token != 7 else 8 for token in batch[0]]])
    ours = run(load(folder), [[token if token != 7 else 8 for token in batch[0]]])
    assert (ours - theirs).abs().max() < 1e-4 * theirs.abs().max()
