"""Makes of a gpt-oss checkpoint one whose experts are in MXFP4, and one with the same numbers in bfloat16."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from splitserve.worker.ops.quantization import dequantize_mxfp4, quantize_mxfp4


def write_mxfp4(base: Path, target: Path) -> None:
    """Write target / "mxfp4" and target / "plain" with the weights of base, a checkpoint in bfloat16."""
    packed, plain = target / "mxfp4", target / "plain"
    for folder in (packed, plain):
        shutil.copytree(base, folder)
    codes, values = {}, {}
    for name, tensor in load_file(base / "model.safetensors").items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            codes[name] = values[name] = tensor
            continue
        # [E, in, out] in bfloat16, [E, out, in] in MXFP4.
        rows = tensor.transpose(1, 2).contiguous()
        nibbles, scales = quantize_mxfp4(rows.flatten(0, 1))
        stored = (nibbles[:, ::2] | nibbles[:, 1::2] << 4).view(torch.uint8)
        codes[f"{name}_blocks"] = stored.view(*rows.shape[:2], -1, 16)
        codes[f"{name}_scales"] = scales.view(*rows.shape[:2], -1)
        values[name] = dequantize_mxfp4(stored, scales).view(rows.shape).transpose(1, 2).contiguous()
    save_file(codes, packed / "model.safetensors", metadata={"format": "pt"})
    save_file(values, plain / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((base / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (packed / "config.json").write_text(json.dumps(config))
