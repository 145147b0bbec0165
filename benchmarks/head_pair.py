"""A model of Qwen3-0.6B's shape and an EAGLE-3 head that foresees a share of it: what would it gain?

    python -m benchmarks.head_pair FOLDER [--likeness 0.05] [--sharpness 8]

Writes FOLDER/model and FOLDER/head, both of made-up weights. The model says mostly what its last token's
embedding says: what its layers add is made small. The head computes just that embedding, with the matrices of
a head of this width that knows 32,000 tokens, those that the model says. Then benchmarks.draft_model
--method eagle3 tells how much the head foresees, and what that gains.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.compare.checkpoint import config, random_weights
from benchmarks.compare.shapes import SHAPES
from benchmarks.draft_pair import ADDING

SHAPE = SHAPES["medium"]
NUM_KNOWN = 32_000
HEAD_DIM = 128
# Of every query and key: their products are largest where a token meets itself.
BIAS = 5.0


def model_weights(likeness: float, sharpness: float) -> dict[str, torch.Tensor]:
    """Return those of the model, with an output head of its own."""
    weights = random_weights(SHAPE, seed=0)
    for name in weights:
        if name.endswith(ADDING):
            weights[name] *= likeness
    weights["model.norm.weight"] *= sharpness
    head = weights["model.embed_tokens.weight"].flip(1).contiguous()
    head[NUM_KNOWN:] = 0
    return weights | {"lm_head.weight": head}


def head_weights(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return those of the head: attention of a pair to itself returns its token, less what it reads."""
    size, inner = SHAPE.hidden_size, SHAPE.intermediate_size
    ones, eye = torch.ones(size), torch.eye(size)
    weights = {
        "fc.weight": torch.zeros(size, 3 * size),
        "norm.weight": model["model.norm.weight"],
        "lm_head.weight": model["lm_head.weight"][:NUM_KNOWN].clone(),
        "d2t": torch.zeros(NUM_KNOWN, dtype=torch.int64),
        "midlayer.mlp.gate_proj.weight": torch.zeros(inner, size),
        "midlayer.mlp.up_proj.weight": torch.zeros(inner, size),
        "midlayer.mlp.down_proj.weight": torch.zeros(size, inner),
        "midlayer.self_attn.v_proj.weight": torch.cat((eye, -eye), dim=1),
        "midlayer.self_attn.o_proj.weight": eye.clone(),
    }
    for part in "vo":
        weights[f"midlayer.self_attn.{part}_proj.bias"] = torch.zeros(size)
    for part in "qk":
        weights[f"midlayer.self_attn.{part}_proj.weight"] = torch.zeros(size, 2 * size)
        weights[f"midlayer.self_attn.{part}_proj.bias"] = BIAS * ones
    for norm in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        weights[f"midlayer.{norm}.weight"] = ones.clone()
    return {name: weight if name == "d2t" else weight.to(torch.bfloat16) for name, weight in weights.items()}


def head_config() -> dict[str, Any]:
    """Return its config.json."""
    num_heads = SHAPE.hidden_size // HEAD_DIM
    return config(SHAPE) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads,
        "head_dim": HEAD_DIM,
        "attention_bias": True,
        "draft_vocab_size": NUM_KNOWN,
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }


def write(folder: Path, weights: dict[str, torch.Tensor], described: dict[str, Any]) -> None:
    """Write a checkpoint without a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(described))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--likeness", type=float, default=0.05, help="factor of what the layers add")
    parser.add_argument("--sharpness", type=float, default=8.0, help="factor of the logits")
    options = parser.parse_args()
    model = model_weights(options.likeness, options.sharpness)
    head = head_weights(model)
    write(options.folder / "model", model, config(SHAPE) | {"tie_word_embeddings": False})
    write(options.folder / "head", head, head_config())
    sizes = [sum(weight.numel() for weight in weights.values()) for weights in (model, head)]
    print(f"{sizes[0]:,} and {sizes[1]:,} parameters")


if __name__ == "__main__":
    main()
