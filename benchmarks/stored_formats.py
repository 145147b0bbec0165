"""Checkpoints of random numbers in every format that is served, for benchmarks/load_memory.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

VOCAB = 32000
_GROUP = 128
_EXPERTS = 8
Tensors = dict[str, torch.Tensor]


class Format(NamedTuple):
    """How a checkpoint is stored and loaded.

    Attributes:
        matrix: returns the tensors of a linear layer [N, K] by their last names.
        quantization_config: of config.json.
        quantization: --quantization.
        architecture: fields of config.json, if it is no Llama.
        others: returns what a layer of it has in place of an MLP, and besides.
    """

    matrix: Callable[[int, int], Tensors]
    quantization_config: dict[str, object] | None = None
    quantization: str = "none"
    architecture: dict[str, object] | None = None
    others: Callable[[Sizes], Tensors] | None = None


def _bytes(*shape: int) -> torch.Tensor:
    """Random bytes, cheaply: a short run again and again."""
    count = torch.Size(shape).numel()
    run = torch.randint(0, 256, (1 << 16,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return run.repeat(-(-count // len(run)))[:count].view(shape)


def _words(*shape: int) -> torch.Tensor:
    return _bytes(*shape[:-1], 4 * shape[-1]).view(torch.int32)


def _scales(*shape: int) -> torch.Tensor:
    return (_bytes(*shape).float() + 1).mul_(1e-4).half()


def _plain(n: int, k: int) -> Tensors:
    return {"weight": (_bytes(n, k).float() - 128).mul_(1e-3).bfloat16()}


def _gptq(n: int, k: int, bits: int = 4, has_order: bool = False) -> Tensors:
    groups = torch.arange(k, dtype=torch.int32) // _GROUP
    if has_order:
        groups = groups[torch.randperm(k, generator=torch.Generator().manual_seed(1))]
    return {
        "qweight": _words(k * bits // 32, n),
        "qzeros": _words(k // _GROUP, n * bits // 32),
        "scales": _scales(k // _GROUP, n),
        "g_idx": groups,
    }


def _awq(n: int, k: int) -> Tensors:
    return {
        "qweight": _words(k, n // 8),
        "qzeros": _words(k // _GROUP, n // 8),
        "scales": _scales(k // _GROUP, n),
    }


def _packed(n: int, k: int, bits: int = 4, has_zeros: bool = False, has_order: bool = False) -> Tensors:
    tensors = {
        "weight_packed": _words(n, k * bits // 32),
        "weight_scale": _scales(n, k // _GROUP).bfloat16(),
        "weight_shape": torch.tensor([n, k]),
    }
    if has_zeros:
        tensors["weight_zero_point"] = _words(n * bits // 32, k // _GROUP)
    if has_order:
        tensors["weight_g_idx"] = _gptq(n, k, has_order=True)["g_idx"]
    return tensors


def _int8(n: int, k: int) -> Tensors:
    return {"weight": _bytes(n, k).view(torch.int8), "weight_scale": _scales(n, 1).bfloat16()}


def _codes_of_fp8(n: int, k: int) -> torch.Tensor:
    # Neither sign's NaN.
    return (_bytes(n, k) & 0x77).view(torch.float8_e4m3fn)


def _fp8(n: int, k: int) -> Tensors:
    return {
        "weight": _codes_of_fp8(n, k),
        "weight_scale_inv": torch.full((-(-n // 128), -(-k // 128)), 1e-3),
    }


def _fp8_channels(n: int, k: int) -> Tensors:
    return {"weight": _codes_of_fp8(n, k), "weight_scale": torch.full((n, 1), 1e-3)}


def _fp8_tensor(n: int, k: int) -> Tensors:
    return {
        "weight": _codes_of_fp8(n, k),
        "weight_scale": torch.tensor(1e-3),
        "input_scale": torch.tensor(1.0),
    }


def _mxfp4_experts(sizes: Sizes) -> Tensors:
    def blocks(name: str, n: int, k: int) -> Tensors:
        return {
            f"mlp.experts.{name}_blocks": _bytes(_EXPERTS, n, k // 32, 16),
            f"mlp.experts.{name}_scales": torch.full((_EXPERTS, n, k // 32), 120, dtype=torch.uint8),
            f"mlp.experts.{name}_bias": torch.zeros(_EXPERTS, n).bfloat16(),
        }

    inner, hidden = sizes.inner, sizes.hidden
    return {
        **blocks("gate_up_proj", 2 * inner, hidden),
        **blocks("down_proj", hidden, inner),
        "mlp.router.weight": _plain(_EXPERTS, hidden)["weight"],
        "mlp.router.bias": torch.zeros(_EXPERTS).bfloat16(),
        "self_attn.sinks": torch.zeros(hidden // 64).bfloat16(),
    }


def _group_config(bits: int, strategy: str, kind: str, **changes: object) -> dict[str, object]:
    weights: dict[str, object] = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy}
    if strategy == "group":
        weights["group_size"] = _GROUP
    group: dict[str, object] = {"targets": ["Linear"], "weights": {**weights, **changes}}
    if kind == "int-quantized":
        group["input_activations"] = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
    groups = {"group_0": group}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": groups,
        "ignore": ["lm_head"],
    }


_GPTQ: dict[str, object] = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": _GROUP,
    "sym": False,
    "desc_act": False,
}
_W4 = partial(_group_config, 4, "group", "pack-quantized")
FORMATS = {
    "bfloat16": Format(_plain),
    "int8 on load": Format(_plain, quantization="int8"),
    "int4 on load": Format(_plain, quantization="int4"),
    "w8a8 on load": Format(_plain, quantization="w8a8"),
    "gptq": Format(_gptq, _GPTQ),
    "gptq 8 bits": Format(partial(_gptq, bits=8), {**_GPTQ, "bits": 8}),
    "gptq act-order": Format(partial(_gptq, has_order=True), {**_GPTQ, "desc_act": True}),
    "awq": Format(
        _awq, {"quant_method": "awq", "bits": 4, "group_size": _GROUP, "zero_point": True, "version": "gemm"}
    ),
    "w4a16": Format(_packed, _W4()),
    "w4a16 asymmetric": Format(partial(_packed, has_zeros=True), _W4(symmetric=False)),
    "w4a16 act-order": Format(partial(_packed, has_order=True), _W4(actorder="group")),
    "w8a16": Format(partial(_packed, bits=8), _group_config(8, "group", "pack-quantized")),
    "w8a8": Format(_int8, _group_config(8, "channel", "int-quantized")),
    "fp8 channels": Format(_fp8_channels, _group_config(8, "channel", "float-quantized", type="float")),
    "fp8 blocks": Format(_fp8, {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}),
    "modelopt": Format(_fp8_tensor, {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}),
    "mxfp4 experts": Format(
        _plain,
        {"quant_method": "mxfp4"},
        architecture={
            "architectures": ["GptOssForCausalLM"],
            "num_local_experts": _EXPERTS,
            "num_experts_per_tok": 2,
            "attention_bias": False,
        },
        others=_mxfp4_experts,
    ),
}
# Where in a block of a GGUF file its scales are, in 16 bits.
BLOCKS = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}


class Sizes(NamedTuple):
    """Of the model."""

    hidden: int
    layers: int

    @property
    def inner(self) -> int:
        """Width of the MLP, in whole blocks of all formats."""
        return -(-11 * self.hidden // 1024) * 256

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Shapes of a layer's matrices."""
        h, inner = self.hidden, self.inner
        attention = {"q": (h, h), "k": (h // 4, h), "v": (h // 4, h), "o": (h, h)}
        mlp = {"gate": (inner, h), "up": (inner, h), "down": (h, inner)}
        return {
            **{f"self_attn.{name}_proj": shape for name, shape in attention.items()},
            **{f"mlp.{name}_proj": shape for name, shape in mlp.items()},
        }

    def config(self) -> dict[str, object]:
        """Return config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": VOCAB,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.hidden // 64,
            "num_key_value_heads": self.hidden // 256,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "torch_dtype": "bfloat16",
        }


def write_safetensors(folder: Path, sizes: Sizes, stored: Format) -> None:
    """Write a checkpoint of one file per layer, so that little of it is in memory at once."""
    from safetensors.torch import save_file

    config = {**sizes.config(), **(stored.architecture or {})}
    if stored.quantization_config is not None:
        config["quantization_config"] = stored.quantization_config
    (folder / "config.json").write_text(json.dumps(config))
    weight_map: dict[str, str] = {}
    norm = torch.ones(sizes.hidden).bfloat16()
    for number, tensors in enumerate(_shards(sizes, stored, norm)):
        name = f"model-{number:05}.safetensors"
        save_file(tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def _shards(sizes: Sizes, stored: Format, norm: torch.Tensor) -> Iterator[Tensors]:
    yield {
        "model.embed_tokens.weight": _plain(VOCAB, sizes.hidden)["weight"],
        "model.norm.weight": norm,
        "lm_head.weight": _plain(VOCAB, sizes.hidden)["weight"],
    }
    for layer in range(sizes.layers):
        start = f"model.layers.{layer}"
        tensors = {f"{start}.{name}.weight": norm for name in ("input_layernorm", "post_attention_layernorm")}
        # Two tensors of a file may not share memory.
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        for name, shape in sizes.linears.items():
            if stored.others is not None and name.startswith("mlp."):
                continue
            made = stored.matrix(*shape)
            tensors |= {f"{start}.{name}.{last}": tensor.contiguous() for last, tensor in made.items()}
        if stored.others is not None:
            tensors |= {f"{start}.{name}": tensor for name, tensor in stored.others(sizes).items()}
        yield tensors


def write_gguf(path: Path, sizes: Sizes, kind: str) -> None:
    """Write a GGUF file with all matrices in a type of blocks, whose scales are finite."""
    import gguf
    import numpy as np

    number = gguf.GGMLQuantizationType[kind]
    elements, num_bytes = gguf.GGML_QUANT_SIZES[number]

    def matrix(n: int, k: int) -> np.ndarray:
        blocks = _bytes(n * k // elements, num_bytes)
        for place in BLOCKS[kind]:
            blocks[:, place : place + 2] = torch.tensor([0x00, 0x10], dtype=torch.uint8)
        if kind == "MXFP4":
            blocks[:, 0] = 120
        return blocks.view(n, -1).numpy()

    writer = gguf.GGUFWriter(path, "llama")
    config = sizes.config()
    for key, name in (
        ("block_count", "num_hidden_layers"),
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
    ):
        writer.add_uint32(f"llama.{key}", int(str(config[name])))
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    norm = np.ones(sizes.hidden, np.float32)
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", matrix(VOCAB, sizes.hidden), raw_dtype=number)
    writer.add_tensor("output_norm.weight", norm)
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    for layer in range(sizes.layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", norm)
        for name, shape in zip(names, sizes.linears.values(), strict=True):
            writer.add_tensor(f"blk.{layer}.{name}.weight", matrix(*shape), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
