"""Adapters of the tiny Llama as PEFT writes them, and the model that each makes of it."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.worker.runner import checkpoints as tiny

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
_SIZES = {
    "q_proj": (tiny.HIDDEN, tiny.NUM_HEADS * tiny.HEAD_DIM),
    "k_proj": (tiny.HIDDEN, tiny.NUM_KV_HEADS * tiny.HEAD_DIM),
    "v_proj": (tiny.HIDDEN, tiny.NUM_KV_HEADS * tiny.HEAD_DIM),
    "o_proj": (tiny.NUM_HEADS * tiny.HEAD_DIM, tiny.HIDDEN),
    "gate_proj": (tiny.HIDDEN, tiny.INTERMEDIATE),
    "up_proj": (tiny.HIDDEN, tiny.INTERMEDIATE),
    "down_proj": (tiny.INTERMEDIATE, tiny.HIDDEN),
}


def module_of(layer: int, target: str) -> str:
    return f"model.layers.{layer}.{'mlp' if target in MLP else 'self_attn'}.{target}"


def deltas_of(
    seed: int, rank: int, targets: Sequence[str] = (*ATTENTION, *MLP), ranks: Mapping[str, int] | None = None
) -> dict[str, torch.Tensor]:
    """Tensors of an adapter by their names; `ranks` are those of single targets."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(tiny.NUM_LAYERS):
        for target in targets:
            inputs, outputs = _SIZES[target]
            own = (ranks or {}).get(target, rank)
            name = f"base_model.model.{module_of(layer, target)}"
            a = torch.randn(own, inputs, generator=generator) * inputs**-0.5
            b = torch.randn(outputs, own, generator=generator) * own**-0.5
            tensors |= {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
    return tensors


def write_adapter(
    folder: Path, tensors: Mapping[str, torch.Tensor], *, rank: int, alpha: float, **config: object
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": rank,
        "lora_alpha": alpha,
        "bias": "none",
        "use_dora": False,
        "use_rslora": False,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors"
    )
    return folder


def merge(base: Path, adapter: Path, folder: Path) -> Path:
    """The checkpoint in which an adapter's deltas are added to the base model's weights."""
    shutil.copytree(base, folder)
    config = json.loads((adapter / "adapter_config.json").read_text())
    weights, tensors = load_file(base / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    for name, a in tensors.items():
        if "lora_A" not in name:
            continue
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        b, target = tensors[name.replace("lora_A", "lora_B")], module.rpartition(".")[2]
        rank = config["rank_pattern"].get(target, config["r"])
        alpha = config["alpha_pattern"].get(target, config["lora_alpha"])
        scale = alpha / (math.sqrt(rank) if config["use_rslora"] else rank)
        weights[f"{module}.weight"] += (scale * b.double() @ a.double()).float()
    save_file(weights, folder / "model.safetensors")
    return folder
