"""How is the model stored? bf16 in the Hugging Face layout, and fp32 to resume a stopped run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from training.optimizer import Optimizer
from training.tokenizer import MAX_TOKENS, VOCAB_SIZE

TIED_HEAD = "lm_head.weight"
PAD_ID, END_OF_TEXT_ID, END_OF_TURN_ID = 3, 0, 2


def model_config() -> LlamaConfig:
    """Return the architecture: fit for a package, with grouped-query attention as in larger models."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=MAX_TOKENS,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END_OF_TURN_ID,
        pad_token_id=PAD_ID,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        attention_bias=False,
        mlp_bias=False,
    )


def save_model(model: LlamaForCausalLM, folder: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors (bf16, the tied head once)."""
    weights = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != TIED_HEAD
    }
    path = folder / "model.safetensors"
    save_file(weights, str(path), metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors makes it readable by the owner only, which a package must not be
    write_json(folder / "config.json", config_dict(model.config))
    write_json(
        folder / "generation_config.json",
        {
            # Greedy by default: a newcomer's first question should get the right answer every time.
            "do_sample": False,
            "eos_token_id": [END_OF_TURN_ID, END_OF_TEXT_ID],
            "pad_token_id": PAD_ID,
        },
    )


def config_dict(config: LlamaConfig) -> dict[str, Any]:
    """Return config.json with the keys that readers of Llama checkpoints need, rope under both names."""
    keys = [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "tie_word_embeddings",
        "attention_bias",
        "mlp_bias",
        "hidden_act",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
    ]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        **{key: getattr(config, key) for key in keys},
    }


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def save_progress(path: Path, model: LlamaForCausalLM, optimizer: Optimizer, step: int) -> None:
    """Write fp32 weights and optimiser moments, so that a stopped run goes on as if it had not been."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items() if name != TIED_HEAD}
    tensors |= {f"optimizer.{name}": value for name, value in optimizer.state().items()}
    part = path.with_suffix(".part")
    save_file(tensors, str(part), metadata={"step": str(step)})
    part.replace(path)


def load_progress(path: Path, model: LlamaForCausalLM, optimizer: Optimizer) -> int:
    """Load what save_progress wrote and return the number of steps done."""
    with safe_open(str(path), framework="pt") as file:
        step = int(file.metadata()["step"])
    tensors = load_file(str(path))
    groups: dict[str, dict[str, torch.Tensor]] = {"model": {}, "optimizer": {}}
    for key, value in tensors.items():
        owner, name = key.split(".", 1)
        groups[owner][name] = value
    model.load_state_dict(groups["model"], strict=False)
    optimizer.load_state(groups["optimizer"])
    return step
