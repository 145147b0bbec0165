"""Times the CPU kernels beside torch: `python -m benchmarks.cpu_kernels [--threads N] [--json F]`.

`linear` has a benchmark of its own, cpu_linear.py. Caches of codes stand beside a cache of bfloat16 under the
same kernels, in the place of torch.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from splitserve.worker.ops.cpu import ops

BF16, FP32 = torch.bfloat16, torch.float32


@dataclass(slots=True)
class Case:
    """One kernel call, the same work in torch, and how much of it there is."""

    op: str
    shape: str
    # Without arguments; a lambda in a loop may hold its own by default values.
    ours: Callable[..., object]
    torchs: Callable[..., object]
    num_bytes: float = 0.0
    flops: float = 0.0


@dataclass(slots=True)
class Result:
    """Microseconds per call, the best of many; `ratio` is ours over torch's."""

    op: str
    shape: str
    us: float
    torch_us: float
    ratio: float
    gb_per_s: float
    gflop_per_s: float


def best_us(call: Callable[[], object], seconds: float) -> float:
    """The fastest of the calls that fit in `seconds`: other processes can only make a call slower."""
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best * 1e6


def measure(case: Case, seconds: float) -> Result:
    us, torch_us = best_us(case.ours, seconds), best_us(case.torchs, seconds)
    return Result(
        case.op, case.shape, us, torch_us, us / torch_us, case.num_bytes / us / 1e3, case.flops / us / 1e3
    )


@dataclass(slots=True)
class AttentionShape:
    """`rows` sequences of `length` positions, of which the last `tokens` are computed."""

    rows: int
    tokens: int
    length: int
    heads: int
    kv_heads: int
    dim: int

    @property
    def flops(self) -> float:
        """Operations of both products, for the positions that are visible."""
        visible = self.tokens * self.length - self.tokens * (self.tokens - 1) / 2
        return 4 * self.rows * visible * self.heads * self.dim


def attention_case(dtype: torch.dtype, shape: AttentionShape) -> Case:
    """Blocks in random order; torch gets the cache already gathered.

    The numbers are random, so it does not matter here that the cache is interleaved.
    """
    rows, tokens, length, kv_heads, dim = shape.rows, shape.tokens, shape.length, shape.kv_heads, shape.dim
    block_size, num_blocks = 16, -(-length // 16)
    size = (2, rows * num_blocks, kv_heads, block_size, dim)
    k_cache, v_cache = caches = torch.randn(size).to(dtype).unbind()
    q = torch.randn(rows * tokens, shape.heads, dim).to(dtype)
    out = torch.empty_like(q)
    table = torch.randperm(rows * num_blocks).int().view(rows, num_blocks)
    cu_seqlens = torch.arange(rows + 1, dtype=torch.int32) * tokens
    seq_lens = torch.full((rows,), length, dtype=torch.int32)
    k, v = (c.view(rows, kv_heads, -1, dim)[:, :, :length].contiguous() for c in caches)
    q4 = q.view(rows, tokens, shape.heads, dim).transpose(1, 2)
    mask = None if tokens == 1 else torch.ones(tokens, length, dtype=torch.bool).tril(length - tokens)
    return Case(
        "attention",
        f"{name(dtype)} R={rows} T={tokens} L={length} {shape.heads}/{kv_heads} D={dim}",
        lambda: ops.paged_attention(out, q, k_cache, v_cache, table, cu_seqlens, seq_lens, dim**-0.5),
        lambda: F.scaled_dot_product_attention(q4, k, v, attn_mask=mask, enable_gqa=True),
        k.nbytes + v.nbytes,
        shape.flops,
    )


def attention_cases() -> Iterator[Case]:
    for dtype in (BF16, FP32):
        for tokens, length in ((1, 128), (1, 1024), (1, 8192), (128, 1024), (512, 512)):
            yield attention_case(dtype, AttentionShape(1, tokens, length, 16, 8, 64))
            yield attention_case(dtype, AttentionShape(1, tokens, length, 16, 8, 128))
    # The heads of a model of 135M parameters.
    for rows, tokens, length in ((32, 1, 1500), (1, 1, 16384), (1, 512, 512), (1, 512, 2560), (1, 512, 8704)):
        yield attention_case(BF16, AttentionShape(rows, tokens, length, 9, 3, 64))


def coded_cases() -> Iterator[Case]:
    """Attention over caches of codes, and writing them."""
    shapes = (
        (1, 1, 4096, 9, 3, 64),
        (16, 1, 4096, 9, 3, 64),
        (8, 1, 4096, 16, 8, 128),
        (4, 1, 4096, 32, 8, 128),
    )
    for numbers in (*shapes, (32, 1, 256, 9, 3, 64), (1, 1024, 1024, 9, 3, 64)):
        shape = AttentionShape(*numbers)
        plain = CachedStep(shape, BF16, shape.dim)
        for kind, step in (
            ("fp8", CachedStep(shape, torch.uint8, shape.dim)),
            ("int8", CachedStep(shape, torch.int8, shape.dim + 2)),
        ):
            described = (
                f"{shape.rows}x{shape.tokens} of {shape.length} {shape.heads}/{shape.kv_heads} D={shape.dim}"
            )
            num_bytes = step.k_cache.nbytes + step.v_cache.nbytes
            yield Case(
                f"coded attention {kind}", described, step.attend, plain.attend, num_bytes, shape.flops
            )
            yield Case(f"coded write {kind}", described, step.write, plain.write, num_bytes)


class CachedStep:
    """A step over a cache of some dtype, blocks in random order; all its tokens can be written anew."""

    def __init__(self, shape: AttentionShape, dtype: torch.dtype, width: int) -> None:
        blocks = shape.length // 16
        self._q = torch.randn(shape.rows * shape.tokens, shape.heads, shape.dim).to(BF16)
        self._out = torch.empty_like(self._q)
        size = (shape.rows * shape.length, shape.kv_heads, shape.dim)
        self._k, self._v = torch.randn(2, *size).to(BF16).unbind()
        self._table = torch.randperm(shape.rows * blocks).int().view(shape.rows, blocks)
        self._slots = (self._table[:, :, None] * 16 + torch.arange(16)).flatten()
        self._cu_seqlens = torch.arange(shape.rows + 1, dtype=torch.int32) * shape.tokens
        self._seq_lens = torch.full((shape.rows,), shape.length, dtype=torch.int32)
        self._scale = shape.dim**-0.5
        block = (shape.kv_heads, 16, width)
        self.k_cache, self.v_cache = torch.zeros(2, shape.rows * blocks, *block, dtype=dtype).unbind()
        self.write()

    def write(self) -> None:
        """Write all keys and values."""
        ops.kv_write(self._k, self._v, self.k_cache, self.v_cache, self._slots)

    def attend(self) -> None:
        """Compute the last tokens."""
        rows = (self._table, self._cu_seqlens, self._seq_lens)
        ops.paged_attention(self._out, self._q, self.k_cache, self.v_cache, *rows, self._scale)


def row_cases() -> Iterator[Case]:
    for tokens in (1, 64):
        x, residual = (torch.randn(tokens, 2048).to(BF16) for _ in range(2))
        weight, out = torch.randn(2048).to(BF16), torch.empty(tokens, 2048, dtype=BF16)
        half = torch.empty(tokens, 1024, dtype=BF16)
        shape = f"bf16 T={tokens} H=2048"
        yield Case(
            "rms_norm",
            shape,
            lambda out=out, x=x, weight=weight: ops.rms_norm(out, x, weight, 1e-6),
            lambda x=x, weight=weight: F.rms_norm(x, (2048,), weight, 1e-6),
            2 * x.nbytes,
        )
        yield Case(
            "fused_add_rms_norm",
            shape,
            lambda out=out, x=x, r=residual, w=weight: ops.fused_add_rms_norm(out, x, r, w, 1e-6),
            lambda x=x, r=residual, w=weight: F.rms_norm(x + r, (2048,), w, 1e-6),
            4 * x.nbytes,
        )
        yield Case(
            "silu_and_mul",
            shape,
            lambda half=half, x=x: ops.silu_and_mul(half, x),
            lambda x=x: F.silu(x[:, :1024]) * x[:, 1024:],
            1.5 * x.nbytes,
        )
        yield Case(
            "gelu tanh",
            shape,
            lambda out=out, x=x: ops.gelu(out, x, "tanh"),
            lambda x=x: F.gelu(x, approximate="tanh"),
            2 * x.nbytes,
        )


def move_cases() -> Iterator[Case]:
    """Blocks of 16 tokens of 30 layers with 3 KV heads of 64, from the pool to host memory."""
    for moves in (1, 64):
        pool, host = (torch.randn(*size, 3072).to(BF16) for size in ((60, 256), (256, 60)))
        source = torch.randperm(256)[:moves]
        target = torch.randperm(256)[:moves]
        yield Case(
            "move_blocks",
            f"bf16 M={moves} P=60 E=3072",
            lambda pool=pool, host=host, a=source, b=target: ops.move_blocks(pool, host, a, b + 256),
            lambda pool=pool, host=host, a=source, b=target: host.index_copy_(
                0, b, pool[:, a].transpose(0, 1)
            ),
            2 * moves * 60 * 3072 * 2,
        )


def torch_sample(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """What a plain torch sampler does: sort if it must, softmax, multinomial."""
    if top_k or top_p < 1:
        values, order = logits.sort(dim=-1, descending=True)
        probabilities = values.softmax(-1)
        probabilities[:, top_k or logits.shape[1] :] = 0
        probabilities[probabilities.cumsum(-1) - probabilities > top_p] = 0
        return order.gather(1, probabilities.multinomial(1))
    return logits.softmax(-1).multinomial(1)


def peaked_logits(rows: int, vocab: int) -> Tensor:
    """Noise and 40 likely tokens, as a trained model's are."""
    logits = torch.randn(rows, vocab) * 2.5
    logits[:, :40] += torch.linspace(16, 6, 40)
    return logits


def sampling_cases() -> Iterator[Case]:
    for rows, vocab in ((1, 49152), (64, 49152), (1, 151936), (16, 151936)):
        logits = peaked_logits(rows, vocab)
        integers = torch.arange(rows)
        for temperature, top_k, top_p in ((0, 0, 1.0), (1, 0, 1.0), (1, 50, 1.0), (1, 0, 0.9), (1, 50, 0.9)):
            arguments = (
                torch.empty(rows, dtype=torch.int32),
                logits,
                torch.full((rows,), float(temperature)),
                torch.full((rows,), top_k, dtype=torch.int32),
                torch.full((rows,), top_p),
                torch.zeros(rows),
                integers,
                integers,
            )
            yield Case(
                "sample",
                f"R={rows} V={vocab} t={temperature} k={top_k} p={top_p}",
                lambda arguments=arguments: ops.sampling.sample(*arguments),
                lambda logits=logits, t=temperature, k=top_k, p=top_p: (
                    torch_sample(logits, k, p) if t else logits.argmax(-1)
                ),
                logits.nbytes,
            )
        ids, logprobs = torch.empty(rows, 6, dtype=torch.int32), torch.empty(rows, 6)
        index, ranks = integers.int(), torch.empty(rows, dtype=torch.int32)
        yield Case(
            "top_logprobs",
            f"R={rows} V={vocab} k=5",
            lambda a=(ids, logprobs, ranks, logits, index, index): ops.sampling.top_logprobs(*a),
            lambda logits=logits: logits.log_softmax(-1).topk(5),
            logits.nbytes,
        )


def name(dtype: torch.dtype) -> str:
    return "bf16" if dtype == BF16 else "fp32"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="threads of both sides (default: 1)")
    parser.add_argument("--isa", default=ops.best_cpu_isa(), help="instruction set (default: the best)")
    parser.add_argument("--seconds", type=float, default=0.15, help="time per measurement (default: 0.15)")
    parser.add_argument("--only", default="", help="run the operations whose name contains this")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    ops.set_isa(options.isa)
    ops.set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    print(f"{options.isa}, {options.threads} thread(s), torch {torch.__version__}")
    print(f"{'op':<19} {'shape':<40} {'us':>9} {'torch us':>9} {'ratio':>6} {'GB/s':>7} {'GFLOP/s':>8}")
    results = []
    for cases in (attention_cases, coded_cases, row_cases, move_cases, sampling_cases):
        for case in cases():
            if options.only not in case.op:
                continue
            r = measure(case, options.seconds)
            results.append(r)
            rates = f"{r.gb_per_s:>7.1f} {r.gflop_per_s:>8.1f}"
            print(
                f"{r.op:<19} {r.shape:<40} {r.us:>9.1f} {r.torch_us:>9.1f} {r.ratio:>6.2f} {rates}",
                flush=True,
            )
    if options.json:
        document = {"isa": options.isa, "threads": options.threads, "results": [asdict(r) for r in results]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
