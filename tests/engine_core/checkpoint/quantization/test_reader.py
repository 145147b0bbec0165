"""How a quantization config is read: which modules are stored how, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.quantization.reader import METHODS, read_quantization
from splitserve.engine_core.checkpoint.quantization.schemes import (
    AwqScheme,
    GptqScheme,
    PackedScheme,
    Quantization,
    ScaledScheme,
)
from splitserve.engine_core.errors import ModelLoadError
from tests.engine_core.checkpoint.test_model_config import LLAMA, write

UP = "model.layers.0.mlp.up_proj"
GATE = "model.layers.0.mlp.gate"
GATE_PROJ = "model.layers.0.mlp.gate_proj"
Config = dict[str, Any]


def read(config: Config) -> Quantization:
    found = read_quantization(Path(), Fields({"quantization_config": config}, "config.json"))
    assert found is not None
    return found


def gptq(**fields: Any) -> Config:
    return {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, **fields}


def awq(**fields: Any) -> Config:
    return {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", **fields}


def fp8(**fields: Any) -> Config:
    return {"quant_method": "fp8", "fmt": "e4m3", **fields}


def compressed(*, group: Config | None = None, weights: Config | None = None, **fields: Any) -> Config:
    packed = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
    first = {"targets": ["Linear"], "weights": {**packed, **(weights or {})}, **(group or {})}
    config: Config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"]}
    return {**config, "config_groups": {"group_0": first}, **fields}


def test_every_method_is_tried_here() -> None:
    assert set(METHODS) == {"gptq", "awq", "fp8", "compressed-tensors", "modelopt"}


def test_a_config_without_the_field_is_not_quantized(tmp_path: Path) -> None:
    assert read_model_config(write(tmp_path, LLAMA, {})).quantization is None


def test_gptqs_versions_differ_in_the_zero_points() -> None:
    assert read(gptq()).scheme_of(UP) == GptqScheme(4, 128, 1, False)
    assert read(gptq(checkpoint_format="gptq_v2")).scheme_of(UP) == GptqScheme(4, 128, 0, False)
    assert read(gptq(desc_act=True, group_size=-1, bits=8)).scheme_of(UP) == GptqScheme(8, 0, 1, True)


def test_gptq_leaves_the_head_out_unless_it_says_otherwise() -> None:
    assert read(gptq()).scheme_of("lm_head") is None
    assert read(gptq(lm_head=True)).scheme_of("lm_head") is not None


def test_gptqs_dynamic_rules_leave_out_and_change() -> None:
    rules: Config = {
        "-:.*up_proj": {},
        "+:.*down_proj": {"bits": 8, "group_size": 32},
        r"model\.layers\.1\.": {},
    }
    quantization = read(gptq(dynamic=rules))
    assert quantization.scheme_of(UP) is None
    assert quantization.scheme_of("model.layers.0.mlp.down_proj") == GptqScheme(8, 32, 1, False)
    assert quantization.scheme_of("model.layers.1.self_attn.q_proj") == GptqScheme(4, 128, 1, False)


def test_gptq_may_name_the_modules_of_a_layer_that_it_quantizes() -> None:
    quantization = read(gptq(modules_in_block_to_quantize=[["self_attn.q_proj"], ["mlp.up_proj"]]))
    assert quantization.scheme_of(UP) is not None
    assert quantization.scheme_of("model.layers.0.mlp.down_proj") is None


def test_names_are_left_out_where_they_stand_between_dots() -> None:
    quantization = read(awq(modules_to_not_convert=["mlp.gate", "visual"]))
    assert quantization.scheme_of(GATE) is None
    assert quantization.scheme_of("visual.blocks.0.qkv") is None
    assert quantization.scheme_of(GATE_PROJ) == AwqScheme(128)


def test_awqs_older_names_of_fields_are_read() -> None:
    config = {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"}
    assert read(config).scheme_of(UP) == AwqScheme(64)


def test_fp8_has_scales_per_block_or_per_tensor() -> None:
    blocks = read(fp8(weight_block_size=[128, 64], activation_scheme="dynamic"))
    assert blocks.scheme_of(UP) == ScaledScheme("F8_E4M3", 128, 64, "weight_scale_inv")
    assert read(fp8()).scheme_of(UP) == ScaledScheme("F8_E4M3", 0, 0)
    assert read(fp8(ignored_layers=[UP])).scheme_of(UP) is None
    assert blocks.notes


def test_compressed_tensors_groups_have_schemes_of_their_own() -> None:
    int8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
    groups = {
        "general": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}},
        "special": {"targets": [r"re:.*down_proj$", UP], "weights": int8, "format": "int-quantized"},
    }
    quantization = read(compressed(format="float-quantized", config_groups=groups, ignore=["re:.*q_proj"]))
    assert quantization.scheme_of(UP) == ScaledScheme("I8", 1, 0)
    assert quantization.scheme_of("model.layers.9.mlp.down_proj") == ScaledScheme("I8", 1, 0)
    assert quantization.scheme_of(GATE_PROJ) == ScaledScheme("F8_E4M3", 0, 0)
    assert quantization.scheme_of("model.layers.9.self_attn.q_proj") is None


def test_compressed_tensors_order_and_zero_points_are_read() -> None:
    quantization = read(compressed(weights={"actorder": "group", "symmetric": False}))
    assert quantization.scheme_of(UP) == PackedScheme(4, 128, False, True)
    static = read(compressed(weights={"actorder": "static"}))
    assert static.scheme_of(UP) == PackedScheme(4, 128, True, False)


def test_what_has_no_effect_is_noted() -> None:
    activations = {"input_activations": {"num_bits": 8, "type": "int"}}
    notes = read(compressed(group=activations, kv_cache_scheme={"num_bits": 8})).notes
    assert any("KV cache" in note for note in notes)
    assert any("activations" in note for note in notes)
    assert not read(compressed()).notes


@pytest.mark.parametrize(
    ("config", "codes"),
    [
        (compressed(), ""),
        (compressed(kv_cache_scheme=None), ""),
        (compressed(kv_cache_scheme={"num_bits": 8, "type": "float", "strategy": "tensor"}), "fp8"),
        (compressed(kv_cache_scheme={"num_bits": 8, "type": "int"}), "int8"),
        (compressed(kv_cache_scheme={"num_bits": 4, "type": "float"}), ""),
        # Nothing but the KV cache is quantized.
        (compressed(config_groups={}, kv_cache_scheme={"num_bits": 8, "type": "float"}), "fp8"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "fp8"),
        # And it is not in codes that are built.
        (compressed(config_groups={}, kv_cache_scheme={"num_bits": 4, "type": "float"}), ""),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"}, ""),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "fp8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}, ""),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"type": "float"}}, "fp8"),
    ],
)
def test_a_config_may_say_what_the_kv_cache_holds(config: Config, codes: str) -> None:
    quantization = read(config)
    assert quantization.cache_codes == codes
    says = bool(config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo"))
    assert any("KV cache" in note for note in quantization.notes) == says
    if not config.get("config_groups") and not config.get("quant_algo"):
        assert quantization.scheme_of(UP) is None


@pytest.mark.parametrize(
    ("inputs", "takes_int8", "has_note"),
    [
        ({"num_bits": 8, "strategy": "token", "dynamic": True}, True, False),
        ({"num_bits": 8, "strategy": "tensor", "dynamic": False}, True, True),
        ({"num_bits": 8, "dynamic": True, "symmetric": False}, True, True),
        ({"num_bits": 4, "dynamic": True}, False, True),
        ({"num_bits": 8, "type": "float", "dynamic": True}, False, True),
    ],
)
def test_int8_activations_belong_to_int8_weights(
    inputs: dict[str, object], takes_int8: bool, has_note: bool
) -> None:
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    quantization = read(compressed(format="int-quantized", config_groups={"all": group}))
    assert quantization.scheme_of(UP) == ScaledScheme("I8", 1, 0, takes_int8=takes_int8)
    assert bool(quantization.notes) == has_note


def test_modelopts_wildcards_leave_modules_out() -> None:
    config = {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head", "*layers.1*"]}
    quantization = read(config)
    assert quantization.scheme_of("lm_head") is None
    assert quantization.scheme_of("model.layers.1.mlp.up_proj") is None
    assert quantization.scheme_of(UP) == ScaledScheme("F8_E4M3", 0, 0)


def test_the_older_name_of_the_field_is_read_too(tmp_path: Path) -> None:
    assert read_model_config(write(tmp_path, LLAMA, {"compression_config": compressed()})).quantization
    both = {"compression_config": compressed(), "quantization_config": compressed()}
    with pytest.raises(ModelLoadError, match="compression_config must be absent"):
        read_model_config(write(tmp_path, LLAMA, both))


REFUSED: list[tuple[Config, str]] = [
    ({}, "quant_method must be one of awq, compressed-tensors, fp8, gptq, modelopt, got ''"),
    ({"quant_method": "bitsandbytes"}, "quant_method must be one of .* got 'bitsandbytes'"),
    (gptq(bits=3), "bits must be 4 or 8, got 3"),
    (gptq(bits=None), "bits is missing"),
    (gptq(group_size=0), "group_size must be -1 or a multiple of 8, got 0"),
    (gptq(group_size=100), "group_size must be -1 or a multiple of 8, got 100"),
    (gptq(group_size=2**40), "group_size must be an integer from -1 to"),
    (gptq(checkpoint_format="marlin"), "checkpoint_format must be one of gptq, gptq_v2, got 'marlin'"),
    (gptq(is_marlin_format=True), "is_marlin_format must be absent"),
    (gptq(pack_dtype="int8"), "pack_dtype must be int32"),
    (gptq(adapter={"name": "lora"}), "adapter must be absent"),
    (gptq(dynamic={"+:.*": {"bits": 2}}), "bits must be 4 or 8, got 2"),
    (gptq(dynamic={"-:(a+)+b": {}}), "dynamic has a pattern with a repeated group"),
    (gptq(dynamic={"-:.*.*.*.*.*": {}}), "more than 4 repetitions"),
    (gptq(dynamic={"-:(": {}}), "dynamic has an invalid pattern"),
    (gptq(dynamic={"-:": {}}), "dynamic must hold names of 1 to 512 characters"),
    (gptq(modules_in_block_to_quantize="q_proj"), "modules_in_block_to_quantize must be a list"),
    (awq(version="gemv"), "version must be gemm, got 'gemv'"),
    (awq(bits=8), "bits must be 4"),
    (awq(zero_point=False), "zero_point must be true"),
    (awq(backend="llm-awq"), "backend must be autoawq"),
    (
        awq(modules_to_not_convert=["x" * 600]),
        "modules_to_not_convert must hold names of 1 to 512 characters",
    ),
    (fp8(fmt="e5m2"), "fmt must be e4m3"),
    (fp8(weight_block_size=[128]), "weight_block_size must hold 2 numbers, got 1"),
    (fp8(weight_block_size=[128, 0]), "weight_block_size: 1 must be an integer from 1"),
    (compressed(format="nvfp4-pack-quantized"), "format must be one of .* got 'nvfp4-pack-quantized'"),
    (compressed(format="marlin-24"), "format must be one of"),
    (compressed(config_groups={}), "config_groups must hold 1 to 64 groups"),
    (compressed(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config must be absent"),
    (compressed(transform_config={"config_groups": {"a": 1}}), "transform_config must be absent"),
    (compressed(quantization_status="initialized"), "quantization_status must be compressed or frozen"),
    (compressed(group={"output_activations": {"num_bits": 8}}), "output_activations must be absent"),
    (compressed(group={"targets": ["Embedding"]}), "targets names the class 'Embedding'"),
    (compressed(group={"targets": ["re:(a*)*"]}), "targets has a pattern with a repeated group"),
    (compressed(group={"weights": None}), "weights is missing"),
    (compressed(weights={"num_bits": 3}), "num_bits must be 4 or 8, got 3"),
    (compressed(weights={"type": "float"}), "type must be int where integers are packed"),
    (compressed(weights={"strategy": "block"}), "strategy must be one of channel, group, got 'block'"),
    (compressed(weights={"dynamic": True}), "dynamic must be false for weights"),
    (compressed(weights={"group_size": None}), "group_size is missing"),
    (compressed(format="int-quantized"), "num_bits must be 8, of type int or float"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quant_algo must be FP8, got 'NVFP4'"),
    (
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["*a*b*c*d*e"]},
        "ignore may have at most 4 wildcards",
    ),
]


@pytest.mark.parametrize(("config", "message"), REFUSED)
def test_what_is_not_supported_is_refused_by_the_name_of_its_field(config: Config, message: str) -> None:
    with pytest.raises(ModelLoadError, match=f"config.json: quantization_config.*{message}"):
        read(config)


def test_a_damaged_file_of_modelopt_is_refused(tmp_path: Path) -> None:
    write(tmp_path, LLAMA, {})
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "INT4_AWQ"}}))
    with pytest.raises(ModelLoadError, match=r"hf_quant_config\.json: quantization: quant_algo must be FP8"):
        read_model_config(tmp_path)
