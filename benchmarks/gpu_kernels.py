"""Times the CUDA kernels beside plain torch and the copy bandwidth of the same run.

`python -m benchmarks.gpu_kernels [--only OP] [--json F]`, on a machine with a GPU. A case that fails is
printed, the others run all the same, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu_attention import attention_cases, coded_cache_cases
from benchmarks.gpu_case import Case
from benchmarks.gpu_copies import COPY_BYTES, copy_bytes_per_s
from benchmarks.gpu_sampling import sampling_cases
from splitserve.worker.ops.cuda import CudaOps, cuda_ops
from splitserve.worker.ops.dense_weight import DenseWeight

# Calls of one graph, whose replay is timed as a whole: launch gaps count little. Beside a call of more than
# so many milliseconds they count nothing, and torch's sorts of a vocabulary take long.
CALLS = 10
LONG_MS = 2.0
REPLAYS = 15


@dataclass(frozen=True, slots=True)
class Sizes:
    """A step of a model: T tokens, H wide, I in the MLP, heads of D, and blocks of KV to move."""

    name: str
    tokens: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    layers: int = 32
    moves: int = 64


# Tensors far larger than the second-level cache; and decode steps, which fit in it.
LARGE = Sizes("large", 16384, 8192, 16384, 64, 8, 128, 128256)
DECODE = Sizes("decode", 64, 4096, 14336, 32, 8, 128, 128256, moves=1)


@dataclass(slots=True)
class Result:
    """Median microseconds per call; `share` is of the ceiling's bandwidth, `ratio` ours over torch's time."""

    op: str
    shape: str
    us: float
    gb_per_s: float
    share: float
    tflop_per_s: float
    torch_us: float
    ratio: float


def median_us(call: Callable[[], object], calls: int = CALLS) -> float:
    """Median time of a call within a captured graph of so many, or of one that takes long."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            start.record()
            call()
            end.record()
    torch.cuda.current_stream().wait_stream(stream)
    end.synchronize()
    if start.elapsed_time(end) > LONG_MS:
        calls = 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times)


def copy_gb_per_s() -> dict[str, float]:
    """Bandwidth of large copies: on the device counting bytes read and written, over the bus those moved."""
    part = torch.randint(0, 256, (COPY_BYTES // 4,), dtype=torch.uint8, device="cuda")
    host = torch.empty(len(part), dtype=torch.uint8, pin_memory=True)
    return {
        "device": copy_bytes_per_s(part.device) / 1e9,
        "out": len(host) / median_us(lambda: host.copy_(part, non_blocking=True), 2) / 1e3,
        "in": len(host) / median_us(lambda: part.copy_(host, non_blocking=True), 2) / 1e3,
    }


class Inputs:
    """Random tensors on the device, and the operations."""

    def __init__(self, ops: CudaOps, device: torch.device, sizes: Sizes, dtype: torch.dtype) -> None:
        self.ops, self.device, self.sizes, self.dtype = ops, device, sizes, dtype

    def randn(self, *shape: int) -> Tensor:
        """Normal numbers."""
        return torch.randn(shape, dtype=self.dtype, device=self.device)

    def integers(self, high: int, count: int) -> Tensor:
        """`count` ids below `high`."""
        return torch.randint(0, high, (count,), dtype=torch.int32, device=self.device)

    def case(
        self, op: str, ours: Callable[[], Tensor], torchs: Callable[..., Tensor], num_bytes: int
    ) -> Case:
        """A case bounded by the memory of the device."""
        name = str(self.dtype).removeprefix("torch.")
        return Case(op, f"{self.sizes.name} T={self.sizes.tokens} {name}", ours, torchs, num_bytes)


def then(result: Tensor, call: Callable[..., None], *arguments: object) -> Callable[[], Tensor]:
    """A call that returns the tensor it has written."""

    def run() -> Tensor:
        call(*arguments)
        return result

    return run


def norm_cases(inputs: Inputs) -> Iterator[Case]:
    ops, s, eps = inputs.ops, inputs.sizes, 1e-6
    x, out, residual = (inputs.randn(s.tokens, s.hidden) for _ in range(3))
    weight, bias = inputs.randn(s.hidden), inputs.randn(s.hidden)
    size = (s.hidden,)
    yield inputs.case(
        "rms_norm",
        then(out, ops.rms_norm, out, x, weight, eps),
        lambda: F.rms_norm(x, size, weight, eps),
        2 * x.nbytes,
    )
    yield inputs.case(
        "layer_norm",
        then(out, ops.layer_norm, out, x, weight, bias, eps),
        lambda: F.layer_norm(x, size, weight, bias, eps),
        2 * x.nbytes,
    )
    zero = torch.zeros_like(x)
    # Adding zeros keeps the residual the same from call to call.
    yield inputs.case(
        "fused_add_rms_norm",
        then(out, ops.fused_add_rms_norm, out, zero, residual, weight, eps),
        lambda: F.rms_norm(residual.add_(zero), size, weight, eps),
        4 * x.nbytes,
    )


def activation_cases(inputs: Inputs) -> Iterator[Case]:
    ops, s = inputs.ops, inputs.sizes
    x, out = inputs.randn(s.tokens, 2 * s.inner), inputs.randn(s.tokens, s.inner)
    gate, up = x.split(s.inner, dim=1)
    yield inputs.case(
        "silu_and_mul", then(out, ops.silu_and_mul, out, x), lambda: F.silu(gate) * up, 3 * out.nbytes
    )
    for form in ("tanh", "none"):
        yield inputs.case(
            f"gelu {form}",
            then(out, ops.gelu, out, gate, form),
            lambda form=form: F.gelu(gate, approximate=form),
            2 * out.nbytes,
        )


def sum_cases(inputs: Inputs) -> Iterator[Case]:
    """What a row linear of four ranks sends, added up by each of them."""
    s, num_ranks = inputs.sizes, 4
    parts = torch.randn(num_ranks, s.tokens * s.hidden, device=inputs.device)
    out, bias = inputs.randn(s.tokens * s.hidden), inputs.randn(s.hidden)
    yield inputs.case(
        "sum_parts",
        then(out, inputs.ops.sum_parts, out, parts, bias),
        lambda: (parts.sum(0).view(s.tokens, s.hidden) + bias).to(inputs.dtype).view(-1),
        parts.nbytes + out.nbytes,
    )


def embedding_cases(inputs: Inputs) -> Iterator[Case]:
    s = inputs.sizes
    weight, ids = inputs.randn(s.vocab, s.hidden), inputs.integers(s.vocab, s.tokens)
    out = inputs.randn(s.tokens, s.hidden)
    yield inputs.case(
        "embedding",
        then(out, inputs.ops.embedding, out, ids, DenseWeight.of(weight)),
        lambda: F.embedding(ids, weight),
        2 * out.nbytes,
    )


def torch_rotate(x: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
    half = cos_sin.shape[1] // 2
    cos, sin = cos_sin[positions][:, None].to(x.dtype).split(half, dim=-1)
    a, b = x.split(half, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def rotary_cases(inputs: Inputs) -> Iterator[Case]:
    ops, s = inputs.ops, inputs.sizes
    qkv = inputs.randn(s.tokens, s.heads + 2 * s.kv_heads, s.head_dim)
    q, k, v = qkv.split([s.heads, s.kv_heads, s.kv_heads], dim=1)
    block_size, max_pos = 16, 4096
    num_blocks = -(-s.tokens // block_size) + 1
    k_cache, v_cache = inputs.randn(2, num_blocks, s.kv_heads, block_size, s.head_dim)
    slots = torch.randperm(num_blocks * block_size, device=inputs.device)[: s.tokens]
    positions = inputs.integers(max_pos, s.tokens)
    # No angle: what is turned in place stays the same from call to call.
    cos_sin = torch.cat([torch.ones(max_pos, s.head_dim // 2), torch.zeros(max_pos, s.head_dim // 2)], dim=1)
    cos_sin = cos_sin.to(inputs.device)
    slot_view = (slots // block_size, slice(None), slots % block_size)

    def write(keys: Tensor) -> Tensor:
        k_cache[slot_view] = keys
        v_cache[slot_view] = v
        return k_cache

    def rotate_and_write() -> Tensor:
        q.copy_(torch_rotate(q, positions, cos_sin))
        return write(torch_rotate(k, positions, cos_sin))

    # Weights of 1: what is normed in place stays the same from call to call.
    norms = (torch.ones_like(q[0, 0]), torch.ones_like(q[0, 0]), 1e-6)

    def norm_rotate_and_write() -> Tensor:
        q.copy_(torch_rotate(F.rms_norm(q, (s.head_dim,), norms[0], 1e-6), positions, cos_sin))
        return write(torch_rotate(F.rms_norm(k, (s.head_dim,), norms[1], 1e-6), positions, cos_sin))

    head = s.tokens * s.head_dim * q.element_size()
    table = s.tokens * s.head_dim * 4
    yield inputs.case(
        "kv_write",
        then(k_cache, ops.kv_write, k, v, k_cache, v_cache, slots),
        lambda: write(k),
        4 * s.kv_heads * head,
    )
    turn = (q, k, v, positions, cos_sin, k_cache, v_cache, slots)
    yield inputs.case(
        "rotary_kv_write",
        then(k_cache, ops.rotary_kv_write, *turn),
        rotate_and_write,
        2 * (s.heads + 2 * s.kv_heads) * head + table,
    )
    yield inputs.case(
        "rotary_kv_write with norms",
        then(k_cache, ops.rotary_kv_write, *turn, *norms),
        norm_rotate_and_write,
        2 * (s.heads + 2 * s.kv_heads) * head + table,
    )


def move_cases(inputs: Inputs) -> Iterator[Case]:
    """Blocks of 16 tokens of all layers: within the pool, out to pinned memory and back."""
    s = inputs.sizes
    pieces, elements, blocks = 2 * s.layers, 16 * s.kv_heads * s.head_dim, 2 * s.moves
    pool = inputs.randn(pieces, blocks, elements)
    host = torch.randn(s.moves, pieces, elements).to(inputs.dtype)
    if inputs.device.type == "cuda":
        host = host.pin_memory()
    first = torch.arange(s.moves, dtype=torch.int32)
    front, back = pool[:, : s.moves], pool[:, s.moves :]

    def torch_out() -> Tensor:
        return host.copy_(front.transpose(0, 1).contiguous(), non_blocking=True)

    def torch_in() -> Tensor:
        return front.copy_(host.to(inputs.device, non_blocking=True).transpose(0, 1))

    def case(op: str, result: Tensor, columns: tuple[Tensor, Tensor], torchs: Callable[[], Tensor]) -> Case:
        ours = then(result, inputs.ops.move_blocks, pool, host, *columns)
        return inputs.case(f"move_blocks {op}", ours, torchs, host.nbytes)

    within = case("within", back, (first, first + s.moves), lambda: back.copy_(front))
    within.num_bytes *= 2
    yield within
    out = case("out", host, (first, first + blocks), torch_out)
    out.ceiling = "out"
    yield out
    back_in = case("in", front, (first + blocks, first), torch_in)
    back_in.ceiling = "in"
    yield back_in


def all_cases(ops: CudaOps, device: torch.device, sizes: Sizes, dtype: torch.dtype) -> Iterator[Case]:
    inputs = Inputs(ops, device, sizes, dtype)
    for cases in (
        norm_cases,
        activation_cases,
        sum_cases,
        embedding_cases,
        rotary_cases,
        move_cases,
    ):
        yield from cases(inputs)


def timed_cases(ops: CudaOps, device: torch.device) -> Iterator[Case]:
    for sizes in (LARGE, DECODE):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            yield from all_cases(ops, device, sizes, dtype)
    yield from attention_cases(ops, device)
    yield from coded_cache_cases(ops, device)
    yield from sampling_cases(ops, device)


def measure(case: Case, ceilings: dict[str, float]) -> Result:
    us, torch_us = median_us(case.ours), median_us(case.torchs)
    gb_per_s = case.num_bytes / us / 1e3
    share = gb_per_s / ceilings[case.ceiling]
    return Result(case.op, case.shape, us, gb_per_s, share, case.flops / us / 1e6, torch_us, us / torch_us)


def measured(cases: Iterable[Case], ceilings: dict[str, float]) -> Iterator[Result | None]:
    """Print and return the result of each case; None for one that fails, which stops no other."""
    columns = f"{'us':>9} {'GB/s':>7} {'share':>6} {'TFLOP/s':>7} {'torch us':>9} {'ratio':>6}"
    print(f"{'op':<20} {'shape':<46} {columns}")
    for case in cases:
        name = f"{case.op:<20} {case.shape:<46}"
        try:
            r = measure(case, ceilings)
        except RuntimeError as error:
            print(f"{name} failed: {error}", flush=True)
            # A capture that fails does not leave its stream.
            torch.cuda.set_stream(torch.cuda.default_stream())
            yield None
            continue
        rates = f"{r.us:>9.1f} {r.gb_per_s:>7.0f} {r.share:>6.2f} {r.tflop_per_s:>7.1f}"
        print(f"{name} {rates} {r.torch_us:>9.1f} {r.ratio:>6.2f}", flush=True)
        yield r


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the operations whose name contains this")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    ops, device = cuda_ops(), torch.device("cuda")
    ceilings = copy_gb_per_s()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("copies, GB/s: " + ", ".join(f"{name} {value:.0f}" for name, value in ceilings.items()))
    document = {"device": torch.cuda.get_device_name(), "copy_gb_per_s": ceilings}
    cases = (case for case in timed_cases(ops, device) if options.only in case.op)
    results, num_failed = [], 0
    for result in measured(cases, ceilings):
        if result is None:
            num_failed += 1
            continue
        results.append(asdict(result))
        if options.json:
            # Each time: what is measured stays, should it be stopped.
            options.json.write_text(json.dumps(document | {"results": results}, indent=1))
    return min(num_failed, 1)


if __name__ == "__main__":
    sys.exit(main())
