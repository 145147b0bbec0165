"""The demo model with layers behind its own that add nothing: the same text at the price of a larger model.

    python -m benchmarks.deep_demo FOLDER [--layers 100]

What drafts for the demo model drafts for it, too: benchmarks.draft_model --model FOLDER tells what it gains.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.perplexity import DEMO_MODEL

ADDING = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=100, help="behind those of the demo model")
    options = parser.parse_args()
    shutil.copytree(DEMO_MODEL, options.folder, dirs_exist_ok=True)
    config = json.loads((DEMO_MODEL / "config.json").read_text())
    weights = load_file(DEMO_MODEL / "model.safetensors")
    first, end = config["num_hidden_layers"], config["num_hidden_layers"] + options.layers
    for name, weight in list(weights.items()):
        if name.startswith("model.layers.0."):
            part = name.removeprefix("model.layers.0.")
            for layer in range(first, end):
                added = torch.zeros_like(weight) if part in ADDING else weight.clone()
                weights[f"model.layers.{layer}.{part}"] = added
    save_file(weights, options.folder / "model.safetensors", metadata={"format": "pt"})
    (options.folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": end}))
    print(f"{sum(weight.numel() for weight in weights.values()):,} parameters in {end} layers")


if __name__ == "__main__":
    main()
