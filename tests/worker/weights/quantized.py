"""Makers of quantized matrices and checkpoints, with what they are worth; packed bit by bit, as published.

Each maker draws integers, scales and zero points, and returns the tensors of a module by their last names and
the plain matrix [N, K] in float32.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]


class Made(NamedTuple):
    """A quantized matrix and the plain one."""

    tensors: Tensors
    plain: torch.Tensor


Maker = Callable[[int, int, torch.Generator], Made]


class Case(NamedTuple):
    """A format: the config of a checkpoint, and the maker of its matrices."""

    config: dict[str, object]
    make: Maker


def _draw(low: int, high: int, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=generator)


def _scales(
    shape: tuple[int, ...], generator: torch.Generator, size: float, dtype: torch.dtype
) -> torch.Tensor:
    return (size * (0.5 + torch.rand(shape, generator=generator))).to(dtype)


def _order(columns: int) -> list[int]:
    """The same for all matrices of these inputs, as tools make it."""
    return torch.randperm(columns, generator=torch.Generator().manual_seed(columns)).tolist()


def pack(integers: torch.Tensor, bits: int, dim: int, order: tuple[int, ...] = ()) -> torch.Tensor:
    """Pack unsigned integers along a dimension, the first into the lowest bits unless an order says else."""
    values = integers.numpy().astype(np.uint32)
    if dim == 0:
        values = values.T
    per_word = 32 // bits
    values = np.pad(values, ((0, 0), (0, -values.shape[1] % per_word)))
    words = np.zeros((values.shape[0], values.shape[1] // per_word), np.uint32)
    for column in range(values.shape[1]):
        word, place = divmod(column, per_word)
        nibble = order.index(place) if order else place
        words[:, word] |= values[:, column] << np.uint32(nibble * bits)
    packed = torch.from_numpy(words.view(np.int32).copy())
    return packed.t().contiguous() if dim == 0 else packed


def _worth(codes: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, groups: list[int]) -> torch.Tensor:
    """(code - zero) * scale in float32, from codes [N, K] and zeros and scales [N, G]."""
    plain = torch.empty(codes.shape)
    for column, group in enumerate(groups):
        difference = (codes[:, column] - zeros[:, group]).float()
        plain[:, column] = difference * scales[:, group].float()
    return plain


def gptq(
    bits: int = 4, group: int = 16, is_symmetric: bool = False, has_order: bool = False, offset: int = 1
) -> Maker:
    """AutoGPTQ's layout; offset 1 is its first version."""

    def make(rows: int, columns: int, generator: torch.Generator) -> Made:
        size = columns if group == -1 else group
        count = -(-columns // size)
        codes = _draw(0, 2**bits, (rows, columns), generator)
        zeros = _draw(0, 2**bits, (rows, count), generator)
        if is_symmetric:
            zeros = torch.full_like(zeros, 2 ** (bits - 1))
        scales = _scales((rows, count), generator, 0.4 / 2**bits, torch.float16)
        groups = [column // size for column in range(columns)]
        if has_order:
            groups = [groups[i] for i in _order(columns)]
        stored = (zeros - offset) % 2**bits
        tensors = {
            # Words run along the inputs.
            "qweight": pack(codes.t(), bits, 0),
            "qzeros": pack(stored.t(), bits, 1),
            "scales": scales.t().contiguous(),
            "g_idx": torch.tensor(groups, dtype=torch.int32),
        }
        return Made(tensors, _worth(codes, zeros, scales, groups))

    return make


def awq(group: int = 16) -> Maker:
    """AutoAWQ's GEMM layout: nibble i of a word is output (0, 2, 4, 6, 1, 3, 5, 7)[i]."""
    order = (0, 2, 4, 6, 1, 3, 5, 7)

    def make(rows: int, columns: int, generator: torch.Generator) -> Made:
        size = columns if group == -1 else group
        count = -(-columns // size)
        codes = _draw(0, 16, (rows, columns), generator)
        zeros = _draw(0, 16, (rows, count), generator)
        scales = _scales((rows, count), generator, 0.03, torch.float16)
        tensors = {
            "qweight": pack(codes.t(), 4, 1, order),
            "qzeros": pack(zeros.t(), 4, 1, order),
            "scales": scales.t().contiguous(),
        }
        return Made(tensors, _worth(codes, zeros, scales, [i // size for i in range(columns)]))

    return make


def packed(
    bits: int = 4,
    group: int = 16,
    is_symmetric: bool = True,
    has_order: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> Maker:
    """compressed-tensors' pack-quantized."""

    def make(rows: int, columns: int, generator: torch.Generator) -> Made:
        size = columns if group == -1 else group
        count = -(-columns // size)
        half = 2 ** (bits - 1)
        codes = _draw(-half, half, (rows, columns), generator)
        zeros = _draw(-half, half, (rows, count), generator)
        if is_symmetric:
            zeros = torch.zeros_like(zeros)
        scales = _scales((rows, count), generator, 0.4 / 2**bits, dtype)
        groups = [column // size for column in range(columns)]
        if has_order:
            groups = [groups[i] for i in _order(columns)]
        tensors = {
            "weight_packed": pack(codes + half, bits, 1),
            "weight_scale": scales,
            "weight_shape": torch.tensor([rows, columns]),
        }
        if not is_symmetric:
            tensors["weight_zero_point"] = pack(zeros + half, bits, 0)
        if has_order:
            tensors["weight_g_idx"] = torch.tensor(groups, dtype=torch.int32)
        return Made(tensors, _worth(codes, zeros, scales, groups))

    return make


def scaled(
    kind: str = "int8",
    block: tuple[int, int] = (1, 0),
    name: str = "weight_scale",
    is_symmetric: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Maker:
    """8 bits with a scale per block; a block size of 0 means all rows or columns."""

    def make(rows: int, columns: int, generator: torch.Generator) -> Made:
        height, width = block[0] or rows, block[1] or columns
        shape = (-(-rows // height), -(-columns // width))
        zeros = torch.zeros(shape, dtype=torch.int8)
        if kind == "int8":
            codes = _draw(-128, 128, (rows, columns), generator).to(torch.int8)
            if not is_symmetric:
                zeros = _draw(-128, 128, shape, generator).to(torch.int8)
            scales = _scales(shape, generator, 0.002, dtype)
        else:
            codes = torch.randn(rows, columns, generator=generator).mul_(100).to(torch.float8_e4m3fn)
            scales = _scales(shape, generator, 0.002, dtype)
        plain = torch.empty(rows, columns)
        for i in range(rows):
            for j in range(columns):
                place = (i // height, j // width)
                plain[i, j] = (codes[i, j].float() - zeros[place].float()) * scales[place].float()
        is_one = shape == (1, 1)
        tensors = {"weight": codes, name: scales[0, 0].clone() if is_one else scales}
        if not is_symmetric:
            tensors["weight_zero_point"] = zeros[0, 0].clone() if is_one else zeros
        return Made(tensors, plain)

    return make


def _gptq_config(**fields: object) -> dict[str, object]:
    return {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False, "sym": False, **fields}


def _compressed(form: str, **weights: object) -> dict[str, object]:
    settings = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 16}
    group = {"targets": ["Linear"], "weights": {**settings, **weights}, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


_FLOAT = {"type": "float", "num_bits": 8, "group_size": None}
_INT8 = {"num_bits": 8, "group_size": None}
CASES = {
    "gptq": Case(_gptq_config(), gptq()),
    "gptq-symmetric": Case(_gptq_config(sym=True), gptq(is_symmetric=True)),
    "gptq-act-order-symmetric": Case(
        _gptq_config(desc_act=True, sym=True), gptq(is_symmetric=True, has_order=True)
    ),
    "gptq-act-order": Case(_gptq_config(desc_act=True), gptq(has_order=True)),
    "gptq-8-bits": Case(_gptq_config(bits=8), gptq(bits=8)),
    "gptq-no-groups": Case(_gptq_config(group_size=-1), gptq(group=-1)),
    "gptq-v2": Case(_gptq_config(checkpoint_format="gptq_v2"), gptq(offset=0)),
    "awq": Case({"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}, awq()),
    "awq-no-groups": Case({"quant_method": "awq", "bits": 4, "group_size": -1, "version": "GEMM"}, awq(-1)),
    "packed": Case(_compressed("pack-quantized"), packed()),
    "packed-8-bits": Case(_compressed("pack-quantized", num_bits=8), packed(bits=8)),
    "packed-asymmetric": Case(_compressed("pack-quantized", symmetric=False), packed(is_symmetric=False)),
    "packed-channel": Case(
        _compressed("pack-quantized", strategy="channel", group_size=None, symmetric=False),
        packed(group=-1, is_symmetric=False, dtype=torch.float16),
    ),
    "packed-act-order": Case(_compressed("pack-quantized", actorder="group"), packed(has_order=True)),
    "packed-act-order-8-bits": Case(
        _compressed("pack-quantized", num_bits=8, symmetric=False, actorder="group"),
        packed(bits=8, is_symmetric=False, has_order=True),
    ),
    "int8-channel": Case(_compressed("int-quantized", **_INT8, strategy="channel"), scaled()),
    "int8-tensor": Case(
        _compressed("int-quantized", **_INT8, strategy="tensor", symmetric=False),
        scaled(block=(0, 0), is_symmetric=False),
    ),
    "int8-group": Case(_compressed("int-quantized", num_bits=8), scaled(block=(1, 16))),
    "fp8-channel": Case(
        _compressed("float-quantized", **_FLOAT, strategy="channel"), scaled("fp8", dtype=torch.bfloat16)
    ),
    "fp8-tensor": Case(_compressed("float-quantized", **_FLOAT, strategy="tensor"), scaled("fp8", (0, 0))),
    "fp8-block": Case(
        _compressed("float-quantized", **_FLOAT, strategy="block", block_structure=[32, 16]),
        scaled("fp8", (32, 16)),
    ),
    "deepseek": Case(
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [32, 32], "activation_scheme": "dynamic"},
        scaled("fp8", (32, 32), "weight_scale_inv"),
    ),
    "fp8-per-tensor": Case({"quant_method": "fp8", "activation_scheme": "static"}, scaled("fp8", (0, 0))),
    "modelopt": Case(
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", "*router*"]},
        scaled("fp8", (0, 0)),
    ),
}


def write_quantized(source: Path, case: Case, quantized: Path, plain: Path) -> None:
    """Write a checkpoint twice, with matrices of a format in its layers and with what they are worth."""
    for target in (quantized, plain):
        shutil.copytree(source, target)
    tensors = load_file(source / "model.safetensors")
    generator = torch.Generator().manual_seed(5)
    plain_tensors, quantized_tensors = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        if tensor.dim() == 2 and name.endswith("_proj.weight"):
            module = name.removesuffix(".weight")
            made = case.make(tensor.shape[0], tensor.shape[1], generator)
            del quantized_tensors[name]
            quantized_tensors |= {f"{module}.{last}": part for last, part in made.tensors.items()}
            plain_tensors[name] = made.plain
    save_file(quantized_tensors, quantized / "model.safetensors", metadata={"format": "pt"})
    save_file(plain_tensors, plain / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (quantized / "config.json").write_text(json.dumps({**config, "quantization_config": case.config}))
