"""How is a model of the comparison written in 8 bits, with activations of 8 bits to go with them?

As compressed-tensors writes it (`int-quantized`): codes and a scale per output; inputs become codes
per token as they come.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
QUANTIZATION: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**_INT8, "strategy": "channel", "dynamic": False},
            "input_activations": {**_INT8, "strategy": "token", "dynamic": True},
        }
    },
}


def w8a8_path(model: Path) -> Path:
    """Return where it is kept: beside the folder of the models."""
    return model.parent.parent / "w8a8" / model.name


def write_w8a8(model: Path) -> None:
    """Write it unless it is there; another process sees all of it or nothing."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = w8a8_path(model)
    if folder.exists():
        return
    partly = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(partly, ignore_errors=True)
    partly.mkdir(parents=True)
    for path in model.glob("*.json"):
        shutil.copy(path, partly)
    config = json.loads((model / "config.json").read_text())
    (partly / "config.json").write_text(json.dumps(config | {"quantization_config": QUANTIZATION}, indent=1))
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(model / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            scale = tensor.float().abs().amax(dim=1, keepdim=True).clamp(min=1e-8) / 127
            tensors[name] = (tensor.float() / scale).round().to(torch.int8)
            tensors[f"{name}_scale"] = scale.to(torch.bfloat16)
        else:
            tensors[name] = tensor
    save_file(tensors, partly / "model.safetensors", metadata={"format": "pt"})
    partly.rename(folder)


if __name__ == "__main__":
    write_w8a8(Path(sys.argv[1]))
