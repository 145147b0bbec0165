"""Writes tiny checkpoints as GGUF files, with the names and the writer of ggml's own package."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

Stored = Callable[[str, torch.Tensor], tuple[np.ndarray, gguf.GGMLQuantizationType | None]]
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Phi3ForCausalLM": "phi3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "MixtralForCausalLM": "llama",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "GptOssForCausalLM": "gpt-oss",
}
_TYPES = {"control": gguf.TokenType.CONTROL, "normal": gguf.TokenType.NORMAL}


def as_floats(name: str, tensor: torch.Tensor) -> tuple[np.ndarray, None]:
    """Store everything in F32."""
    return tensor.float().numpy(), None


def as_blocks(kind: str) -> Stored:
    """Store matrices in a type of blocks, vectors in F32."""

    def store(name: str, tensor: torch.Tensor) -> tuple[np.ndarray, gguf.GGMLQuantizationType | None]:
        if tensor.dim() == 1 or name.endswith("bias"):
            return as_floats(name, tensor)
        number = gguf.GGMLQuantizationType[kind]
        return gguf.quantize(tensor.float().numpy(), number), number

    return store


def write_gguf(source: Path, target: Path, stored: Stored = as_floats, **changes: Any) -> None:
    """Write a checkpoint with its tokenizer as a GGUF file; changes replace metadata, None removes them."""
    _write(source, target, stored, changes)


def write_parts(source: Path, target: Path, max_tensors: int) -> list[Path]:
    """Write it as gguf-split parts it, under the target's name with the number of each; return the files."""
    _write(source, target, as_floats, {}, max_tensors)
    return sorted(target.parent.glob(f"{target.stem}-*-of-*.gguf"))


def _write(source: Path, target: Path, stored: Stored, changes: dict[str, Any], max_tensors: int = 0) -> None:
    config = json.loads((source / "config.json").read_text())
    arch = ARCHITECTURES[config["architectures"][0]]
    writer = gguf.GGUFWriter(target, arch, split_max_tensors=max_tensors)
    for key, value in {**_metadata(config, arch), **_tokenizer(source), **changes}.items():
        if value is not None and key != "general.architecture":
            _add(writer, key, value)
    tensors = load_file(source / "model.safetensors")
    for name in [*tensors]:
        # As llama.cpp's converter calls it.
        if name.endswith("sinks"):
            tensors[f"{name}.weight"] = tensors.pop(name)
    kind = gguf.MODEL_ARCH[arch.upper().replace("-", "_")]
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    for name, tensor in _with_stacked_experts(tensors).items():
        placed = name if name.startswith("blk.") else names.get_name(name, (".weight", ".bias"))
        values, number = stored(placed, _as_gguf_has_it(name, tensor, config, arch))
        writer.add_tensor(placed, np.ascontiguousarray(values), raw_dtype=number)
    for name, values in _vectors(config, arch).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_EXPERT = re.compile(r"model\.layers\.(\d+)\..*experts\.(?:(\d+)\.)?(\w+?)(?:\.weight)?(_bias)?")
_ROLES = {"w1": "gate", "w3": "up", "w2": "down"} | {f"{part}_proj": part for part in ("gate", "up", "down")}


def _with_stacked_experts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors, those of experts stacked under GGUF's names: [E, out, in]."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            found[name] = tensor
            continue
        layer, expert, role, bias = match.groups()
        ending = "bias" if bias else "weight"
        if expert is not None:
            found.setdefault(f"blk.{layer}.ffn_{_ROLES[role]}_exps.weight", {})[int(expert)] = tensor
        elif role == "gate_up_proj":
            for part, start in (("gate", 0), ("up", 1)):
                turned = tensor[..., start::2]
                key = f"blk.{layer}.ffn_{part}_exps.{ending}"
                found[key] = turned if bias else turned.transpose(1, 2).contiguous()
        else:
            found[f"blk.{layer}.ffn_down_exps.{ending}"] = (
                tensor if bias else tensor.transpose(1, 2).contiguous()
            )
    return {
        name: torch.stack([value[i] for i in sorted(value)]) if isinstance(value, dict) else value
        for name, value in found.items()
    }


def _as_gguf_has_it(name: str, tensor: torch.Tensor, config: dict[str, Any], arch: str) -> torch.Tensor:
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        return tensor.float() + 1
    if arch != "llama" or name.split(".")[-2] not in ("q_proj", "k_proj"):
        return tensor
    heads = config["num_attention_heads" if ".q_proj" in name else "num_key_value_heads"]
    parted = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return parted.swapaxes(1, 2).reshape(tensor.shape)


def _metadata(config: dict[str, Any], arch: str) -> dict[str, Any]:
    rope = config.get("rope_parameters") or {}
    full = rope.get("full_attention", rope)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    values: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(full.get("rope_theta", 10000.0)),
        "rope.dimension_count": int(head_dim * full.get("partial_rotary_factor", 1.0)),
    }
    if head_dim * config["num_attention_heads"] != config["hidden_size"]:
        values |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if arch.startswith("gemma"):
        values["attention.key_length"] = head_dim
    if config.get("sliding_window") and config["architectures"] != ["Qwen2ForCausalLM"]:
        values["attention.sliding_window"] = config["sliding_window"]
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(cap):
            values[cap] = float(config[cap])
    if num_experts := config.get("num_local_experts") or config.get("num_experts"):
        values |= {"expert_count": num_experts, "expert_used_count": config["num_experts_per_tok"]}
        values["expert_feed_forward_length"] = config.get(
            "moe_intermediate_size", config["intermediate_size"]
        )
    if full.get("rope_type") == "yarn":
        values |= {"rope.scaling.type": "yarn", "rope.scaling.factor": float(full["factor"])}
        values["rope.scaling.original_context_length"] = full["original_max_position_embeddings"]
    if full.get("rope_type") == "linear":
        values |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(full["factor"])}
    if full.get("rope_type") == "longrope":
        values["rope.scaling.original_context_length"] = config["original_max_position_embeddings"]
    return {f"{arch}.{name}": value for name, value in values.items()}


def _vectors(config: dict[str, Any], arch: str) -> dict[str, np.ndarray]:
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"], np.float32)
            for kind in ("short", "long")
        }
    if rope.get("rope_type") != "llama3":
        return {}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**config), "cpu")
    plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, head_dim, 2) / head_dim)
    return {"rope_freqs.weight": (plain / scaled).float().numpy()}


def _tokenizer(source: Path) -> dict[str, Any]:
    described = json.loads((source / "tokenizer.json").read_text())
    settings = json.loads((source / "tokenizer_config.json").read_text())
    vocab = {**described["model"]["vocab"], **{t["content"]: t["id"] for t in described["added_tokens"]}}
    special = {token["content"] for token in described["added_tokens"]}
    tokens = sorted(vocab, key=lambda token: vocab[token])
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(_TYPES["control" if t in special else "normal"]) for t in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in described["model"]["merges"]],
        **{
            f"tokenizer.ggml.{role}_token_id": vocab[settings[f"{role}_token"]]
            for role in ("bos", "eos")
            if settings.get(f"{role}_token")
        },
        "tokenizer.chat_template": settings["chat_template"],
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
