"""Times quantized weights beside bfloat16 on a CPU: `python -m benchmarks.weight_forms`.

Every form multiplies the same rows in turns within one process, each time with another copy of its matrix,
so that the weights come from memory, as in a decode step. What is compared is the CPU time of one thread,
the mean of the faster half of the calls. A ratio above 1 is a form that is slower than bfloat16.
"""

from __future__ import annotations

import argparse
import time

import torch

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import UNIT_COLUMNS, GroupCodes, GroupForm, KeptForm, ScaleUnits

# K, N: gate-up and down of models of 135M, 0.6B and 1.1B.
SHAPES = {
    "135M gate-up": (576, 3072),
    "135M down": (1536, 576),
    "0.6B gate-up": (1024, 6144),
    "0.6B down": (3072, 1024),
    "1.1B gate-up": (2048, 11264),
    "1.1B down": (5632, 2048),
}
FORMS: dict[str, KeptForm] = {
    "bf16": "plain",
    "int8": "int8",
    "int4": "int4",
    "mxfp4": "mxfp4",
    "4g32o": GroupForm(4, 32, True),
    "4g64": GroupForm(4, 64, False),
    "4g128o": GroupForm(4, 128, True),
    "8g32": GroupForm(8, 32, False),
    "8g32o": GroupForm(8, 32, True),
    "8g16": GroupForm(8, 16, False),
    "q4_k": GroupForm(4, 32, True, has_units=True),
    "q5_0": GroupForm(6, 32, False),
    "q6_k": GroupForm(6, 16, False, has_units=True),
    "w8a8": "w8a8",
    "q4_k_a8": GroupForm(4, 32, True, takes_int8=True, has_units=True),
}
# Q8_0 of GGUF is 8g32.
ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
COLD_BYTES = 96 * 2**20
CALLS = 24


def packed(depth: int, cols: int, form: KeptForm) -> PackedWeight:
    """Return a random matrix in a form."""
    if not isinstance(form, GroupForm):
        return PackedWeight.of(torch.randn(cols, depth).bfloat16(), form)
    codes = torch.randint(0, 2 ** min(form.bits, 6), (cols, depth)).to(torch.int8)
    if not form.has_offsets:
        codes -= 2 ** (min(form.bits, 6) - 1)
    units = torch.rand(cols, -(-depth // UNIT_COLUMNS)) / 64
    scales = units.repeat_interleave(UNIT_COLUMNS // form.group, 1)[:, : -(-depth // form.group)]
    offsets = -8 * scales if form.has_offsets else None
    weight = PackedWeight((cols, depth), torch.bfloat16, form)
    weight.fill_group_codes(GroupCodes(codes, scales, offsets, ScaleUnits(units, -8 * units)))
    return weight


def copy_of(weight: PackedWeight) -> PackedWeight:
    """Return the same matrix elsewhere in memory."""
    copy = PackedWeight(weight.shape, weight.dtype, weight.form)
    copy.data.copy_(weight.data)
    if weight.scales is not None:
        assert copy.scales is not None, "forms with scales have them everywhere"
        copy.scales.copy_(weight.scales)
    return copy


def times_of(copies: dict[str, list[PackedWeight]], rows: int, seconds: float) -> dict[str, float]:
    """Return microseconds of a call with each form."""
    first = next(iter(copies.values()))[0]
    x = torch.randn(rows, first.shape[1]).bfloat16()
    out = torch.empty(rows, first.shape[0]).bfloat16()
    taken: dict[str, list[float]] = {name: [] for name in copies}
    end, call = time.thread_time() + seconds, 0
    while call < CALLS or time.thread_time() < end:
        for name, weights in copies.items():
            weight = weights[call % len(weights)]
            start = time.thread_time()
            ops.linear(out, x, weight)
            taken[name].append(time.thread_time() - start)
        call += 1
    return {name: 1e6 * sum(sorted(each)[: call // 2]) / (call // 2) for name, each in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--isa", default=ops.best_cpu_isa(), help="instruction set (default: the best)")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="with commas between")
    parser.add_argument("--forms", default=",".join(FORMS), help="of " + ", ".join(FORMS))
    parser.add_argument("--only", default="", help="matrices whose name contains this")
    parser.add_argument("--seconds", type=float, default=0.3, help="time per line (default: 0.3)")
    options = parser.parse_args()
    ops.set_isa(options.isa)
    ops.set_num_threads(1)
    torch.set_num_threads(1)
    names = ["bf16"] + [name for name in options.forms.split(",") if name != "bf16"]
    for matrix, (depth, cols) in SHAPES.items():
        if options.only not in matrix:
            continue
        count = -(-COLD_BYTES // (2 * depth * cols))
        copies = {}
        for name in names:
            weight = packed(depth, cols, FORMS[name])
            copies[name] = [weight] + [copy_of(weight) for _ in range(count - 1)]
        print(f"{options.isa}, {matrix}: us of bf16, then ratios to it")
        print(f"{'rows':>5} " + " ".join(f"{name:>7}" for name in names))
        for rows in map(int, options.rows.split(",")):
            us = times_of(copies, rows, options.seconds)
            ratios = " ".join(f"{us[name] / us['bf16']:>7.2f}" for name in names[1:])
            print(f"{rows:>5} {us['bf16']:>7.0f} {ratios}", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
