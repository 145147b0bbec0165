"""Models in GGUF files compute what their checkpoints do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.gguf.tensor_types import BLOCKS
from splitserve.engine_core.checkpoint.state import file_states
from splitserve.engine_core.checkpoint.weight_files import Checkpoint
from splitserve.engine_core.errors import ModelLoadError
from splitserve.worker.attention.cpu import CpuAttention
from splitserve.worker.device.base import Device
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.layers.parameter import Part
from splitserve.worker.layers.weight_plan import WeightPlan
from splitserve.worker.models.draft_heads.whole_vocabulary import AskedVocabulary, Parts
from splitserve.worker.models.placement import Placement
from splitserve.worker.weights import loading
from splitserve.worker.weights.formats.block_values import KINDS
from splitserve.worker.weights.loading import load_weights
from tests.checkpoints import CheckpointCache, CheckpointSpec
from tests.worker.models.driver import Driver
from tests.worker.weights.gguf_models import as_blocks, as_floats, write_gguf, write_parts
from tests.worker.weights.test_block_values import blocks_of
from tests.worker.weights.test_formats import kept, products, rows_of

PROMPT = list(range(20, 60))
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0}
_LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
SPECS = {
    "llama": CheckpointSpec("llama"),
    "llama-3.1": CheckpointSpec("llama", {"rope_parameters": _LLAMA3, "hidden_size": 96}),
    "llama-tied": CheckpointSpec("llama", {"tie_word_embeddings": True}),
    "mistral": CheckpointSpec("mistral", {"sliding_window": 16, "head_dim": 16}),
    "qwen2": CheckpointSpec("qwen2"),
    "qwen3": CheckpointSpec("qwen3", {"tie_word_embeddings": True}),
    "phi3": CheckpointSpec("phi3", {"sliding_window": 24}),
    "phi3-longrope": CheckpointSpec(
        "phi3",
        {
            "rope_parameters": {**_LONGROPE, "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0]},
            "original_max_position_embeddings": 128,
        },
    ),
    "gemma2": CheckpointSpec("gemma2", {"sliding_window": 16, "query_pre_attn_scalar": 16}),
    "gemma3": CheckpointSpec(
        "gemma3", {"sliding_window": 16, "query_pre_attn_scalar": 16, "num_hidden_layers": 7}
    ),
    "mixtral": CheckpointSpec("mixtral"),
    "qwen3moe": CheckpointSpec("qwen3moe"),
    # GGUF says nothing of the limit, which is that of the models that there are.
    "gpt-oss": CheckpointSpec("gptoss", {"swiglu_limit": 7.0}),
}
# Widths that blocks of 32 fill.
WIDE = CheckpointSpec("llama", {"hidden_size": 96, "intermediate_size": 160})


@pytest.mark.parametrize("name", SPECS)
def test_a_gguf_file_has_the_logits_of_its_checkpoint(
    name: str, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    source, path = checkpoints.get(SPECS[name]), tmp_path / "model.gguf"
    write_gguf(source, path)
    made, original = Driver(path), Driver(source)
    assert torch.equal(made.prefill_logits(PROMPT), original.prefill_logits(PROMPT))
    assert made.greedy(PROMPT, 12) == original.greedy(PROMPT, 12)


@pytest.mark.parametrize("name", SPECS)
def test_a_gguf_file_says_of_its_model_what_config_json_does(
    name: str, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    source, path = checkpoints.get(SPECS[name]), tmp_path / "model.gguf"
    write_gguf(source, path)
    made, original = read_model_config(path), read_model_config(source)
    assert made.eos_token_ids == original.eos_token_ids
    assert made.sliding_windows == original.sliding_windows
    assert made.attention_scales == original.attention_scales
    assert made.tie_word_embeddings == original.tie_word_embeddings
    assert made.max_model_len == original.max_model_len


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
@pytest.mark.parametrize("chunk_bytes", [3000, 2**24])
def test_a_quantized_gguf_file_generates_what_the_dequantized_checkpoint_does(
    kind: str, chunk_bytes: int, checkpoints: CheckpointCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "CHUNK_BYTES", chunk_bytes)
    source, path, plain = checkpoints.get(WIDE), tmp_path / "model.gguf", tmp_path / "plain"
    write_gguf(source, path, as_blocks(kind))
    shutil.copytree(source, plain)
    number = gguf.GGMLQuantizationType[kind]
    tensors = {
        name: torch.from_numpy(gguf.dequantize(gguf.quantize(tensor.numpy(), number), number).copy())
        if tensor.dim() == 2
        else tensor
        for name, tensor in load_file(source / "model.safetensors").items()
    }
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    made, expected = Driver(path), Driver(plain)
    assert torch.equal(made.prefill_logits(PROMPT), expected.prefill_logits(PROMPT))


@pytest.mark.parametrize("columns", [range(0, 96), range(32, 64), range(5, 90)])
@pytest.mark.parametrize("rows", [range(0, 160), range(40, 80)])
def test_a_shard_of_a_matrix_of_blocks_is_read_by_itself(
    rows: range, columns: range, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    path, name = tmp_path / "model.gguf", "model.layers.0.mlp.up_proj.weight"
    source = checkpoints.get(WIDE)
    write_gguf(source, path, as_blocks("Q5_1"))
    number = gguf.GGMLQuantizationType.Q5_1
    plain = load_file(source / "model.safetensors")[name].numpy()
    expected = torch.from_numpy(gguf.dequantize(gguf.quantize(plain, number), number).copy())
    plan = WeightPlan()
    shape = (len(rows), len(columns))
    shard = plan.declare_linear(shape, [Part(name, (160, 96), outputs=rows, inputs=columns)])
    load_weights(path, plan, torch.float32, CpuDevice(), lambda loaded, total: None)
    assert torch.equal(rows_of(shard), expected[rows.start : rows.stop, columns.start : columns.stop])


SPARSE = {
    "mixtral": CheckpointSpec("mixtral", {"hidden_size": 96, "intermediate_size": 160}),
    "qwen3moe": CheckpointSpec("qwen3moe", {"hidden_size": 96, "head_dim": 16, "moe_intermediate_size": 32}),
    "gptoss": CheckpointSpec(
        "gptoss", {"hidden_size": 96, "intermediate_size": 64, "swiglu_limit": 7.0, "head_dim": 16}
    ),
}


@pytest.mark.parametrize(("name", "kind"), [("mixtral", "Q8_0"), ("qwen3moe", "Q4_0"), ("gptoss", "Q8_0")])
@pytest.mark.parametrize("chunk_bytes", [1000, 2**24])
def test_quantized_experts_generate_what_their_dequantized_numbers_do(
    name: str,
    kind: str,
    chunk_bytes: int,
    checkpoints: CheckpointCache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "CHUNK_BYTES", chunk_bytes)
    path, plain = tmp_path / "model.gguf", tmp_path / "plain.gguf"
    number = gguf.GGMLQuantizationType[kind]

    def dequantized(placed: str, tensor: torch.Tensor) -> tuple[np.ndarray, None]:
        values, _ = as_blocks(kind)(placed, tensor)
        if tensor.dim() == 1 or placed.endswith("bias"):
            return values, None
        return gguf.dequantize(values, number), None

    source = checkpoints.get(SPARSE[name])
    write_gguf(source, path, as_blocks(kind))
    write_gguf(source, plain, dequantized)
    made, expected = Driver(path), Driver(plain)
    assert torch.equal(made.prefill_logits(PROMPT), expected.prefill_logits(PROMPT))


def as_mxfp4(name: str, tensor: torch.Tensor) -> tuple[np.ndarray, gguf.GGMLQuantizationType | None]:
    """Store experts in MXFP4, the rest in F32."""
    if not name.endswith("_exps.weight"):
        return as_floats(name, tensor)
    blocks = tensor.float().reshape(-1, 32)
    exponents = blocks.abs().amax(dim=1).log2().floor().int() - 2 + 127
    codes = torch.bucketize(blocks / torch.exp2(exponents[:, None].float() - 127).abs(), EDGES)
    codes = torch.tensor(CODES, dtype=torch.uint8)[codes]
    data = torch.cat((exponents[:, None].to(torch.uint8), codes[:, :16] | (codes[:, 16:] << 4)), dim=1)
    return data.numpy().reshape(*tensor.shape[:-1], -1), gguf.GGMLQuantizationType.MXFP4


# Codes of -6 to 6 in order, and the borders between them.
CODES = [15, 14, 13, 12, 11, 10, 9, 0, 1, 2, 3, 4, 5, 6, 7]
_NUMBERS = torch.tensor([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6])
EDGES = (_NUMBERS[1:] + _NUMBERS[:-1]) / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk_bytes", [1000, 2**24])
def test_experts_in_mxfp4_are_kept_and_generate_what_their_numbers_do(
    dtype: torch.dtype,
    chunk_bytes: int,
    checkpoints: CheckpointCache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "CHUNK_BYTES", chunk_bytes)
    path, plain = tmp_path / "model.gguf", tmp_path / "plain.gguf"

    def dequantized(placed: str, tensor: torch.Tensor) -> tuple[np.ndarray, None]:
        values, number = as_mxfp4(placed, tensor)
        return (values if number is None else gguf.dequantize(values, number)), None

    source = checkpoints.get(SPARSE["gptoss"])
    write_gguf(source, path, as_mxfp4)
    write_gguf(source, plain, dequantized)
    experts = read_model_config(path).experts
    assert experts is not None
    assert experts.is_mxfp4
    made, expected = Driver(path, dtype), Driver(plain, dtype)
    logits, wanted = made.prefill_logits(PROMPT), expected.prefill_logits(PROMPT)
    if dtype == torch.float32:
        assert torch.equal(logits, wanted)
    else:
        # Products with MXFP4 are added up in another order than those with bfloat16.
        assert (logits - wanted).abs().max() < 0.02 * wanted.abs().max()


@pytest.mark.parametrize("name", ["llama", "gptoss"])
def test_a_model_in_several_files_is_that_in_one(
    name: str, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    source = checkpoints.get({"llama": SPECS["llama"], **SPARSE}[name])
    write_gguf(source, tmp_path / "whole.gguf")
    parts = write_parts(source, tmp_path / "model.gguf", 5)
    assert len(parts) > 3
    made, whole = Driver(parts[0]), Driver(tmp_path / "whole.gguf")
    assert torch.equal(made.prefill_logits(PROMPT), whole.prefill_logits(PROMPT))
    states = file_states(str(parts[0]))
    assert [state.name for state in states] == [part.name for part in parts]


def swap(parts: list[Path]) -> None:
    content = parts[1].read_bytes()
    parts[1].write_bytes(parts[2].read_bytes())
    parts[2].write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda parts: parts[2].unlink(), r"model-00003-of-\d+\.gguf is missing: .* says that there are"),
        (swap, r"'split.no' and 'split.count' must be 1 and \d+, got 2 and"),
        (lambda parts: parts[1].write_bytes(parts[1].read_bytes()[:-40]), r"00002-of-.* is truncated"),
        (lambda parts: parts[0].rename(parts[0].with_name("model.gguf")), "its name must end in -00001-of-"),
    ],
    ids=["missing", "swapped", "truncated", "renamed"],
)
def test_damaged_parts_are_refused(
    damage: Callable[[list[Path]], object], error: str, checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    parts = write_parts(checkpoints.get(SPECS["llama"]), tmp_path / "model.gguf", 5)
    with pytest.raises(ModelLoadError, match=r"is part 2 of \d+: name the first"):
        read_model_config(parts[1])
    damage(parts)
    first = parts[0] if parts[0].exists() else tmp_path / "model.gguf"
    with pytest.raises(ModelLoadError, match=error):
        Checkpoint.open(first)


def test_a_part_that_was_left_out_of_the_count_is_refused(
    checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    first, *_others = write_parts(checkpoints.get(SPECS["llama"]), tmp_path / "model.gguf", 5)
    data = first.read_bytes()
    key = b"split.tensors.count"
    at = data.index(key) + len(key) + 4
    first.write_bytes(data[:at] + (99).to_bytes(4, "little") + data[at + 4 :])
    with pytest.raises(ModelLoadError, match=r"'split.tensors.count' says 99"):
        Checkpoint.open(first)


def test_experts_of_another_number_than_the_metadata_says_are_refused(
    checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(checkpoints.get(SPECS["mixtral"]), path, as_floats, **{"llama.expert_count": 4})
    with pytest.raises(ModelLoadError, match=r"_exps.weight' has shape \[5, .*matrices of 4 experts"):
        Checkpoint.open(path)


def test_a_scale_that_is_no_number_is_found_while_it_is_read(
    checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"

    def damaged(name: str, tensor: torch.Tensor):  # type: ignore[no-untyped-def]
        values, number = as_blocks("Q8_0")(name, tensor)
        if "ffn_down" in name:
            values.reshape(-1)[:2] = 0xFF
        return values, number

    write_gguf(checkpoints.get(WIDE), path, damaged)
    with pytest.raises(ModelLoadError, match=r"ffn_down\.weight' holds values that are not finite"):
        Driver(path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_integers_of_a_block_type_are_kept_bit_by_bit(kind: str, tmp_path: Path) -> None:
    path, name = tmp_path / "model.gguf", "model.layers.0.mlp.up_proj.weight"
    blocks = blocks_of(kind, 40 * 512 // BLOCKS[kind].block_elements)
    number = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.ffn_up.weight", blocks.reshape(40, -1), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    plain = torch.from_numpy(gguf.dequantize(blocks, number).copy()).view(40, 512)
    plan = WeightPlan()
    part = Part(name, (40, 512), outputs=range(3, 37), inputs=range(64, 512))
    shard, looked_up = plan.declare_linear((34, 448), [part]), plan.declare_rows(name, (40, 512))
    half = plan.declare_linear((40, 256), [part._replace(outputs=None, inputs=range(256, 512))])
    load_weights(path, plan, torch.bfloat16, CpuDevice(), lambda loaded, total: None)
    assert kept(half) == kept(looked_up) == KINDS[kind].form
    # Not of whole units.
    assert kept(shard) == KINDS[kind].form._replace(has_units=False)
    assert torch.equal(products(shard), plain[3:37, 64:])
    assert torch.equal(products(half), plain[:, 256:])
    assert torch.equal(rows_of(looked_up), plain.bfloat16().float())


def test_an_embedding_and_output_head_are_read_without_the_layers(
    checkpoints: CheckpointCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, path = checkpoints.get(SPECS["llama"]), tmp_path / "model.gguf"
    write_gguf(source, path)
    placement = Placement[Device](CpuDevice(), CpuAttention())
    asked = AskedVocabulary(read_model_config(path), Parts(True, True), torch.float32, "none", placement)
    vocabulary = asked.load(lambda loaded, total: None, load_weights)
    table = load_file(source / "model.safetensors")["model.embed_tokens.weight"]
    rows = torch.empty(2, table.shape[1])
    placement.device.ops.embedding(
        rows, torch.tensor([7, 9], dtype=torch.int32), vocabulary.embedding_weight.weight
    )
    assert torch.equal(rows, table[[7, 9]])
    assert "tensors_ignored" not in caplog.text
