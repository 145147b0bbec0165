"""Cases of benchmarks.gpu_kernels for paged attention: decode bound by memory, prefill by arithmetic.

Over a cache of codes it stands beside our own over bfloat16, in torch's column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu_case import Case
from splitserve.worker.kv_cache.layout import INT8_SCALE_BYTES
from splitserve.worker.ops.cuda import AttentionShape, CudaOps

BLOCK_SIZE = 16
PARTIAL_HEADER = 4


@dataclass(frozen=True, slots=True)
class Work:
    """R requests that each compute the last `new` of `length` tokens, and maybe one that computes `chunk`."""

    requests: int
    new: int
    length: int
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    chunk: int = 0

    @property
    def name(self) -> str:
        """For the table."""
        heads = f"{self.heads}/{self.kv_heads} heads of {self.head_dim}"
        chunk = f"+{self.chunk}" if self.chunk else ""
        return f"R={self.requests} T={self.new}{chunk} L={self.length} {heads}"

    @property
    def counts(self) -> list[int]:
        """Tokens that each row computes, the chunk last."""
        return [self.new] * self.requests + ([self.chunk] if self.chunk else [])

    @property
    def flops(self) -> int:
        """Two multiplications and additions per head element and position that a token sees."""
        seen = sum(new * self.length - new * (new - 1) // 2 for new in self.counts)
        return 4 * seen * self.heads * self.head_dim


# Decode at 4k and 1k, one long request, a prefill, a chunk behind a long prefix, a chunk among decode rows.
WORK = [
    Work(64, 1, 4096),
    Work(256, 1, 1024),
    Work(1, 1, 32768),
    Work(64, 1, 4096, head_dim=64),
    Work(4, 4096, 4096),
    Work(1, 2048, 16384),
    Work(63, 1, 4096, chunk=2048),
]


# Decode over codes, and a prefill, whose codes become numbers tile by tile.
CODED_WORK = [Work(64, 1, 4096), Work(1, 1, 32768), Work(64, 1, 4096, head_dim=64), Work(4, 4096, 4096)]
CODES = {"fp8": torch.uint8, "int8": torch.int8}


class Step:
    """The tensors of one call, with blocks scattered over the cache."""

    def __init__(
        self, ops: CudaOps, device: torch.device, work: Work, dtype: torch.dtype, codes: str = ""
    ) -> None:
        self.ops, self.work = ops, work
        rows, blocks = len(work.counts), -(-work.length // BLOCK_SIZE)
        size = (2, rows * blocks, work.kv_heads, BLOCK_SIZE, work.head_dim)
        self.plain = tuple(torch.randn(size, dtype=dtype, device=device))
        self.k_cache, self.v_cache = self._coded(CODES[codes]) if codes else self.plain
        self.tables = torch.randperm(size[1], device=device).int().view(rows, blocks)
        tokens = sum(work.counts)
        self.q = torch.randn(tokens, work.heads, work.head_dim, dtype=dtype, device=device)
        self.out = torch.empty_like(self.q)
        self.cu_seqlens = torch.tensor([0, *work.counts]).cumsum(0).int().to(device)
        self.seq_lens = torch.full((rows,), work.length, dtype=torch.int32, device=device)
        bounds = AttentionShape(tokens, work.heads, work.kv_heads, blocks * BLOCK_SIZE)
        size_of_plan = ops.attention_plan_size(
            tokens, rows, work.heads, work.kv_heads, work.head_dim, bounds.max_seq_len
        )
        self.plan = torch.empty(size_of_plan, dtype=torch.int32, device=device)
        self.partials = torch.empty(1 << 16, PARTIAL_HEADER + work.head_dim, device=device)
        ops.plan_attention(self.plan, self.partials, self.cu_seqlens, self.seq_lens, bounds)

    def _coded(self, codes: torch.dtype) -> tuple[Tensor, Tensor]:
        """The numbers of the plain caches as codes."""
        keys, values = (cache.transpose(1, 2).flatten(0, 1) for cache in self.plain)
        *sizes, head_dim = self.plain[0].shape
        width = head_dim + (INT8_SCALE_BYTES if codes == torch.int8 else 0)
        k_cache, v_cache = torch.zeros((2, *sizes, width), dtype=codes, device=keys.device)
        self.ops.kv_write(keys, values, k_cache, v_cache, torch.arange(len(keys), device=keys.device))
        return k_cache, v_cache

    @property
    def num_bytes(self) -> int:
        """What has to be read and written, each byte once."""
        return self.k_cache.nbytes + self.v_cache.nbytes + 2 * self.q.nbytes

    def ours(self) -> Tensor:
        """Run the kernels."""
        return self._run(self.k_cache, self.v_cache)

    def over_bfloat16(self) -> Tensor:
        """Run them over the plain caches."""
        return self._run(*self.plain)

    def _run(self, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        self.ops.paged_attention(
            self.out,
            self.q,
            k_cache,
            v_cache,
            self.tables,
            self.cu_seqlens,
            self.seq_lens,
            self.work.head_dim**-0.5,
            plan=self.plan,
            partials=self.partials,
        )
        return self.out

    def gathered(self, cache: Tensor) -> Tensor:
        """A cache's tokens in order, [R, L, Hkv, D]."""
        blocks = cache[self.tables.long()].transpose(2, 3).flatten(1, 2)
        return blocks[:, : self.work.length]

    def torchs(self) -> Callable[[], Tensor]:
        """Dense attention over keys and values that are already gathered, which is torch's best case."""
        work = self.work
        k, v = (self.gathered(cache).transpose(1, 2).contiguous() for cache in self.plain)
        whole = work.requests * work.new
        parts = [self._dense(self.q[:whole], k[: work.requests], v[: work.requests], work.new)]
        if work.chunk:
            parts.append(self._dense(self.q[whole:], k[work.requests :], v[work.requests :], work.chunk))
        return lambda: torch.cat([part() for part in parts]) if len(parts) > 1 else parts[0]()

    def _dense(self, q: Tensor, k: Tensor, v: Tensor, new: int) -> Callable[[], Tensor]:
        """Rows of equally many tokens; k and v [R, Hkv, L, D]."""
        work = self.work
        q = q.view(len(k), new, work.heads, work.head_dim).transpose(1, 2)
        causal = new == work.length
        mask = None
        if not causal and new > 1:
            ones = torch.ones(new, work.length, dtype=torch.bool, device=q.device)
            mask = ones.tril(work.length - new)

        def run() -> Tensor:
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True, scale=work.head_dim**-0.5
            )
            return out.transpose(1, 2).flatten(0, 1)

        return run


def attention_case(ops: CudaOps, device: torch.device, work: Work, dtype: torch.dtype) -> Case:
    step = Step(ops, device, work, dtype)
    return Case(
        "paged_attention",
        f"{work.name} {str(dtype).removeprefix('torch.')}",
        step.ours,
        step.torchs(),
        step.num_bytes,
        flops=work.flops,
    )


def coded_case(ops: CudaOps, device: torch.device, work: Work, codes: str) -> Case:
    step = Step(ops, device, work, torch.bfloat16, codes)
    calls = (step.ours, step.over_bfloat16)
    return Case(f"attention over {codes}", f"{work.name} bfloat16", *calls, step.num_bytes, flops=work.flops)


def attention_cases(ops: CudaOps, device: torch.device, all_work: Iterable[Work] = WORK) -> Iterator[Case]:
    for work in all_work:
        yield attention_case(ops, device, work, torch.bfloat16)


def coded_cache_cases(
    ops: CudaOps, device: torch.device, all_work: Iterable[Work] = CODED_WORK
) -> Iterator[Case]:
    for work in all_work:
        for codes in CODES:
            yield coded_case(ops, device, work, codes)
