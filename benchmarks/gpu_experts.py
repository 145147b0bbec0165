"""Times the experts of a sparse layer beside torch's grouped product and the reading of the chosen experts.

`python -m benchmarks.gpu_experts [--only SHAPE] [--json F]`, on a machine with a GPU. `share` is that of the
bandwidth floor: the matrices of the experts that the rows chose, read once at the copy bandwidth of the same
run. Calls that follow each other choose other experts, so that none are left in the second-level cache. A
layer is the whole way from hidden states to their weighted sums, without the router's product.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu_kernels import copy_gb_per_s, median_us
from splitserve.worker.ops.cuda import CudaOps, cuda_ops
from splitserve.worker.ops.dense_weight import DenseWeight
from splitserve.worker.ops.layers.experts import Routing
from splitserve.worker.ops.mxfp4_weight import Mxfp4Weight
from splitserve.worker.ops.quantization import quantize_mxfp4

ROWS = (1, 8, 64, 2048)
# Choices that calls take in turns.
CHOICES = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """A sparse layer: E experts of H -> 2 I -> H, of which a token passes K."""

    name: str
    hidden: int
    inner: int
    num_experts: int
    num_chosen: int
    form: Literal["bf16", "mxfp4"]


SHAPES = [
    Shape("Qwen3-30B-A3B", 2048, 768, 128, 8, "bf16"),
    Shape("gpt-oss-20b", 2880, 2880, 32, 4, "mxfp4"),
]


class Matrices:
    """One matrix of each expert, [E * N, D], whose rows are the first one's in another order.

    Attributes:
        weight: as the kernels read it.
        plain: bfloat16 [E, N, D], the same numbers.
        expert_bytes: what the kernels read of an expert.
    """

    def __init__(self, shape: Shape, rows: int, depth: int, device: torch.device) -> None:
        first = torch.randn(rows, depth) * depth**-0.5
        size = (shape.num_experts * rows, depth)
        self.weight: DenseWeight | Mxfp4Weight
        parts: list[tuple[Tensor, Tensor]]
        if shape.form == "mxfp4":
            self.weight, one = Mxfp4Weight(size, device), Mxfp4Weight.of(first.to(device))
            parts = [(one.data, self.weight.data), (one.scales, self.weight.scales)]
            first = _numbers(first)
        else:
            self.weight = DenseWeight(size, torch.bfloat16, device)
            parts = [(first.bfloat16().to(device), self.weight.data)]
        plain = first.bfloat16().to(device)
        self.plain = torch.empty((shape.num_experts, rows, depth), dtype=torch.bfloat16, device=device)
        for expert in range(shape.num_experts):
            self.plain[expert] = plain.roll(expert, 0)
            for source, target in parts:
                target[expert * rows : (expert + 1) * rows] = source.roll(expert, 0)
        self.expert_bytes = self.weight.num_bytes // shape.num_experts


def _numbers(matrix: Tensor) -> Tensor:
    """The numbers that codes of MXFP4 stand for, [N, D]."""
    codes, scales = quantize_mxfp4(matrix)
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    signed = torch.cat((values, -values))[codes.long()].view(len(codes), -1, 32)
    return (signed * torch.exp2(scales.float() - 127)[..., None]).view(matrix.shape)


class Layer:
    """The weights of a sparse layer."""

    def __init__(self, ops: CudaOps, device: torch.device, shape: Shape) -> None:
        self.ops, self.device, self.shape = ops.experts, device, shape
        self.kernels = ops
        self.inner = Matrices(shape, 2 * shape.inner, shape.hidden, device)
        self.outer = Matrices(shape, shape.hidden, shape.inner, device)


class Step:
    """The tensors of T tokens: what they choose, in turns, and what the layer makes of them.

    Attributes:
        num_read: how many experts a call reads, on average.
    """

    def __init__(self, layer: Layer, tokens: int) -> None:
        self.layer, shape, device = layer, layer.shape, layer.device
        slots = tokens * shape.num_chosen
        self.choices = [self._choose(tokens) for _ in range(CHOICES)]
        counts = [int(choice.starts.diff().count_nonzero()) for choice in self.choices]
        self.num_read = sum(counts) / CHOICES
        self._turns = itertools.cycle(self.choices)

        def empty(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
            return torch.empty(size, dtype=dtype, device=device)

        self.x = torch.randn(tokens, shape.hidden, device=device).bfloat16()
        self.rows, self.gate_up = empty(slots, shape.hidden), empty(slots, 2 * shape.inner)
        self.rows.copy_(self.x.repeat(shape.num_chosen, 1))
        self.activated = torch.randn(slots, shape.inner, device=device).bfloat16()
        self.outputs = empty(slots, shape.hidden, dtype=torch.float32)
        self.out = torch.empty_like(self.x)

    def _choose(self, tokens: int) -> Routing:
        shape, device = self.layer.shape, self.layer.device
        size = (tokens, shape.num_chosen)

        def integers(*size: int) -> Tensor:
            return torch.empty(size, dtype=torch.int32, device=device)

        places, starts = integers(tokens * shape.num_chosen), integers(shape.num_experts + 1)
        routing = Routing(torch.empty(size, device=device), integers(*size), places, starts)
        logits = torch.randn(tokens, shape.num_experts, device=device)
        self.layer.ops.route(routing, logits, adds_up=True)
        return routing

    def inner(self) -> Tensor:
        """Gates and ups of the rows."""
        self.layer.ops.linear(self.gate_up, self.rows, self.layer.inner.weight, next(self._turns).starts)
        return self.gate_up

    def outer(self) -> Tensor:
        """The ways back."""
        self.layer.ops.linear(self.outputs, self.activated, self.layer.outer.weight, next(self._turns).starts)
        return self.outputs

    def whole(self) -> Tensor:
        """The layer behind its router."""
        ops, choice = self.layer.ops, next(self._turns)
        ops.spread_rows(self.rows, self.x, choice)
        ops.linear(self.gate_up, self.rows, self.layer.inner.weight, choice.starts)
        self.layer.kernels.silu_and_mul(self.activated, self.gate_up)
        ops.linear(self.outputs, self.activated, self.layer.outer.weight, choice.starts)
        ops.combine(self.out, self.outputs, choice)
        return self.out

    def torchs_inner(self) -> Tensor:
        """The same as inner() by torch, in bfloat16."""
        return _grouped(self.rows, self.layer.inner.plain, next(self._turns))

    def torchs_outer(self) -> Tensor:
        """The same as outer()."""
        return _grouped(self.activated, self.layer.outer.plain, next(self._turns))

    def torchs_whole(self) -> Tensor:
        """The same as whole()."""
        choice = next(self._turns)
        places = choice.places.long()
        rows = torch.empty_like(self.rows)
        rows[places] = self.x.repeat_interleave(self.layer.shape.num_chosen, 0)
        gate, up = _grouped(rows, self.layer.inner.plain, choice).chunk(2, dim=1)
        outputs = _grouped(F.silu(gate) * up, self.layer.outer.plain, choice)
        slots = outputs[places].view(*choice.weights.shape, -1)
        return (slots.float() * choice.weights[..., None]).sum(1).bfloat16()

    def floors(self) -> dict[str, float]:
        """Bytes of the experts that a call of each kind reads."""
        inner, outer = self.layer.inner.expert_bytes, self.layer.outer.expert_bytes
        sizes = {"inner": inner, "outer": outer, "layer": inner + outer}
        return {name: self.num_read * size for name, size in sizes.items()}

    def calls(self) -> dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]]:
        """Ours and torch's."""
        return {
            "inner": (self.inner, self.torchs_inner),
            "outer": (self.outer, self.torchs_outer),
            "layer": (self.whole, self.torchs_whole),
        }


def _grouped(rows: Tensor, matrices: Tensor, choice: Routing) -> Tensor:
    return F.grouped_mm(rows, matrices.transpose(1, 2), offs=choice.starts[1:])


@dataclass(slots=True)
class Result:
    """Median microseconds of a call; torch_us is 0 where torch has no such product."""

    shape: str
    rows: int
    op: str
    num_read: float
    us: float
    share: float
    tflop_per_s: float
    torch_us: float


def measured(step: Step, bytes_per_s: float) -> Iterator[Result]:
    """Time what a step does."""
    shape, tokens = step.layer.shape, len(step.x)
    weights = {"inner": 2, "outer": 1, "layer": 3}
    for op, (ours, torchs) in step.calls().items():
        us = median_us(ours)
        floor_us = step.floors()[op] / bytes_per_s * 1e6
        flops = 2 * tokens * shape.num_chosen * shape.hidden * shape.inner * weights[op]
        name = f"{shape.name} {shape.form}"
        yield Result(name, tokens, op, step.num_read, us, floor_us / us, flops / us / 1e6, _try(torchs))


def _try(call: Callable[[], Tensor]) -> float:
    """Time torch; what it cannot capture stops nothing."""
    try:
        return median_us(call)
    except (RuntimeError, AttributeError) as error:
        print(f"torch: {error}", file=sys.stderr)
        torch.cuda.set_stream(torch.cuda.default_stream())
        return 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    gb_per_s, device = copy_gb_per_s()["device"], torch.device("cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copies {gb_per_s:.0f} GB/s")
    columns = f"{'experts':>7} {'us':>9} {'share':>6} {'TFLOP/s':>8} {'torch us':>9}"
    print(f"{'shape':<22} {'rows':>5} {'op':<6} {columns}")
    results = []
    for shape in (shape for shape in SHAPES if options.only in shape.name):
        layer = Layer(cuda_ops(), device, shape)
        for tokens in ROWS:
            for r in measured(Step(layer, tokens), gb_per_s * 1e9):
                results.append(asdict(r))
                numbers = f"{r.num_read:>7.1f} {r.us:>9.1f} {r.share:>6.2f} {r.tflop_per_s:>8.1f}"
                print(f"{r.shape:<22} {r.rows:>5} {r.op:<6} {numbers} {r.torch_us:>9.1f}", flush=True)
        del layer
        torch.cuda.empty_cache()
    if options.json:
        options.json.write_text(json.dumps({"copy_gb_per_s": gb_per_s, "results": results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
