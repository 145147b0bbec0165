"""A model and one of a quarter of its size that resembles it, both of random weights: what would drafts gain?

    python -m benchmarks.draft_pair FOLDER [--likeness 0.05] [--sharpness 8]

Writes FOLDER/model, of the size of SmolLM2-135M with a smaller vocabulary, and FOLDER/draft, which has its
embedding and its first layers. What the other layers add is made small, so that the draft model foresees much
of what the model says; benchmarks.draft_model then tells how much, and what that gains.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.compare.checkpoint import config, random_weights
from benchmarks.compare.shapes import Shape
from benchmarks.perplexity import DEMO_MODEL

MODEL = Shape("llama", 576, 30, 9, 3, 64, 1536, 32768, 2048, 1e4, 32768)
DRAFT = MODEL._replace(num_layers=4)
ADDING = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def write(folder: Path, shape: Shape, weights: dict[str, torch.Tensor]) -> None:
    """Write a checkpoint, with the demo model's tokenizer, whose ids are a part of the vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    layers = {f"model.layers.{i}." for i in range(shape.num_layers)}
    held = {
        name: weight
        for name, weight in weights.items()
        if ".layers." not in name or any(name.startswith(layer) for layer in layers)
    }
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(shape)))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_MODEL / name, folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--likeness", type=float, default=0.05, help="factor of what the other layers add")
    parser.add_argument("--sharpness", type=float, default=8.0, help="factor of the logits")
    options = parser.parse_args()
    weights = random_weights(MODEL, seed=0)
    for layer in range(DRAFT.num_layers, MODEL.num_layers):
        for name in ADDING:
            weights[f"model.layers.{layer}.{name}"] *= options.likeness
    weights["model.norm.weight"] *= options.sharpness
    write(options.folder / "model", MODEL, weights)
    write(options.folder / "draft", DRAFT, weights)
    print(f"{MODEL.num_parameters:,} and {DRAFT.num_parameters:,} parameters")


if __name__ == "__main__":
    main()
