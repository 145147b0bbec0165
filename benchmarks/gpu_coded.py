"""Times products with quantised weights on a GPU beside torch's in bfloat16.

`python -m benchmarks.gpu_coded [--only FORM] [--rows 1 8 64 2048]`, on a machine with a GPU. GB/s count
codes, scales, rows and outputs once; `ratio` is our time over torch's with a weight of bfloat16.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu_case import Case
from benchmarks.gpu_kernels import copy_gb_per_s, measured
from splitserve.worker.ops.codes.weight import CodedWeight
from splitserve.worker.ops.cuda import CudaOps, cuda_ops
from splitserve.worker.ops.quantization import GroupCodes, GroupForm, KeptForm

ROWS = (1, 8, 64, 2048)
# Outputs and inputs of layers in the shape of Llama-3.1-8B: query, key and value; gate and up; down.
SHAPES = ((6144, 4096), (28672, 4096), (4096, 14336))
FORMS: dict[str, KeptForm] = {
    "int8": "int8",
    "int4": "int4",
    "int4 asymmetric 128": GroupForm(4, 128, True),
    "fp8 128": GroupForm(8, 128, False, is_float=True),
    "w8a8": "w8a8",
}
# Of weights that take turns, so that none is still in the second-level cache.
TURNS_BYTES = 256 << 20


class Weight(NamedTuple):
    """A weight of codes, and what it is worth in bfloat16, of which copies take turns."""

    coded: list[CodedWeight]
    plain: list[Tensor]


def make_weight(shape: tuple[int, int], form: KeptForm, device: torch.device, turns_bytes: int) -> Weight:
    """Random codes; numbers are about as large as in a layer."""
    codes, values = _draw(shape, form, device)
    weight = CodedWeight(shape, form, device)
    weight.fill_group_codes(codes)
    plain = values.bfloat16()
    coded = [weight]
    for _ in range(min(9, turns_bytes // weight.num_bytes)):
        other = CodedWeight(shape, form, device)
        other.data.copy_(weight.data)
        other.scales.copy_(weight.scales)
        coded.append(other)
    return Weight(coded, [plain, *(plain.clone() for _ in range(min(9, turns_bytes // plain.nbytes)))])


def _draw(shape: tuple[int, int], form: KeptForm, device: torch.device) -> tuple[GroupCodes, Tensor]:
    """Return codes and float32 [N, K]."""
    rows, depth = shape
    group, bits, has_offsets, is_float = depth, 8, False, False
    if isinstance(form, GroupForm):
        bits, group, has_offsets, is_float = form[:4]
    elif form == "int4":
        bits, group = 4, 32
    low, high = (0, 16) if has_offsets and bits == 4 else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    codes = torch.randint(low, high, shape, dtype=torch.int8, device=device)
    numbers = codes.float()
    if is_float:
        # All but the two that are no numbers.
        codes = torch.where((codes & 127) == 127, 0, codes).view(torch.uint8)
        numbers = codes.view(torch.float8_e4m3fn).float()
    size = (rows, -(-depth // group))
    scales = (1 + torch.rand(size, device=device)) * depth**-0.5 / numbers.square().mean().sqrt()
    offsets = -7.5 * scales if has_offsets else None
    values = numbers * scales.repeat_interleave(group, 1)[:, :depth]
    if offsets is not None:
        values += offsets.repeat_interleave(group, 1)[:, :depth]
    return GroupCodes(codes, scales, offsets), values


def coded_cases(
    ops: CudaOps,
    device: torch.device,
    rows: tuple[int, ...] = ROWS,
    shapes: tuple[tuple[int, int], ...] = SHAPES,
    turns_bytes: int = TURNS_BYTES,
) -> Iterator[Case]:
    """Every form, shape and number of rows."""
    for (name, form), shape in itertools.product(FORMS.items(), shapes):
        weight = make_weight(shape, form, device, turns_bytes)
        for count in rows:
            yield _case(ops, name, weight, count)


def _case(ops: CudaOps, name: str, weight: Weight, count: int) -> Case:
    cols, depth = weight.coded[0].shape
    device = weight.coded[0].data.device
    x = torch.randn(count, depth, dtype=torch.bfloat16, device=device)
    out = torch.empty(count, cols, dtype=torch.bfloat16, device=device)
    coded, plain = itertools.cycle(weight.coded), itertools.cycle(weight.plain)

    def ours() -> Tensor:
        ops.linear(out, x, next(coded))
        return out

    def torchs() -> Tensor:
        return F.linear(x, next(plain))

    num_bytes = weight.coded[0].num_bytes + x.nbytes + out.nbytes
    shape = f"T={count} K={depth} N={cols}"
    return Case(name, shape, ours, torchs, num_bytes, flops=2 * count * cols * depth)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the forms whose name contains this")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    options = parser.parse_args()
    ops, device = cuda_ops(), torch.device("cuda")
    ceilings = copy_gb_per_s()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copies {ceilings['device']:.0f} GB/s")
    cases = (case for case in coded_cases(ops, device, tuple(options.rows)) if options.only in case.op)
    return min(1, sum(result is None for result in measured(cases, ceilings)))


if __name__ == "__main__":
    sys.exit(main())
