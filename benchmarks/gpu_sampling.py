"""Cases of benchmarks.gpu_kernels for sampling: one row of logits to one token, with and without filters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from benchmarks.gpu_case import Case
from splitserve.worker.ops.cuda import CudaOps

VOCABS = (128256, 151936)
ROWS = (1, 64, 256)
# (top_k, top_p); 0 and 1.0 are off.
FILTERS = ((0, 1.0), (50, 1.0), (0, 0.9), (50, 0.9))


def torch_sample(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """What a plain torch sampler does: sort if it must, softmax, multinomial."""
    if not top_k and top_p == 1.0:
        return logits.softmax(-1).multinomial(1)
    values, order = logits.sort(dim=-1, descending=True)
    probabilities = values.softmax(-1)
    probabilities[:, top_k or logits.shape[1] :] = 0
    probabilities[probabilities.cumsum(-1) - probabilities > top_p] = 0
    return order.gather(1, probabilities.multinomial(1))


def sample_case(ops: CudaOps, logits: Tensor, top_k: int, top_p: float) -> Case:
    rows, vocab = logits.shape
    device, index = logits.device, torch.arange(rows, device=logits.device)
    out = torch.empty(rows, dtype=torch.int32, device=device)
    ones, zeros = torch.ones(rows, device=device), torch.zeros(rows, device=device)
    top_ks = torch.full((rows,), top_k, dtype=torch.int32, device=device)
    top_ps = torch.full((rows,), top_p, device=device)

    def ours() -> Tensor:
        ops.sampling.sample(out, logits, ones, top_ks, top_ps, zeros, index, index)
        return out

    name = f"R={rows} V={vocab} k={top_k} p={top_p}"
    return Case("sample", name, ours, lambda: torch_sample(logits, top_k, top_p), logits.nbytes)


def masked_case(ops: CudaOps, logits: Tensor) -> Case:
    """Every row has a mask of its own that allows half of the tokens, as a grammar's would."""
    rows, vocab = logits.shape
    device, index = logits.device, torch.arange(rows, device=logits.device)
    out = torch.empty(rows, dtype=torch.int32, device=device)
    ones, zeros = torch.ones(rows, device=device), torch.zeros(rows, device=device)
    off = torch.zeros(rows, dtype=torch.int32, device=device)
    words = torch.randint(-(1 << 31), 1 << 31, (rows, -(-vocab // 32)), dtype=torch.int64, device=device)
    masks, mask_rows = words.to(torch.int32), index.to(torch.int32)
    bits = torch.arange(32, dtype=torch.int32, device=device)
    forbidden = ((masks.unsqueeze(2) >> bits) & 1 == 0).flatten(1)[:, :vocab]

    def ours() -> Tensor:
        ops.sampling.sample(out, logits, ones, off, ones, zeros, index, index, masks, mask_rows)
        return out

    def torchs() -> Tensor:
        return torch_sample(logits.masked_fill(forbidden, -torch.inf), 0, 1.0)

    return Case("sample", f"R={rows} V={vocab} masked", ours, torchs, logits.nbytes + masks.nbytes)


def logprobs_case(ops: CudaOps, logits: Tensor, top: int) -> Case:
    rows, vocab = logits.shape
    index = torch.arange(rows, dtype=torch.int32, device=logits.device)
    ids = torch.empty(rows, 1 + top, dtype=torch.int32, device=logits.device)
    logprobs = torch.empty(rows, 1 + top, device=logits.device)
    ranks = torch.empty_like(index)

    def ours() -> Tensor:
        ops.sampling.top_logprobs(ids, logprobs, ranks, logits, index, index)
        return logprobs[:, 1:]

    name = f"R={rows} V={vocab} k={top}"
    return Case("top_logprobs", name, ours, lambda: logits.log_softmax(-1).topk(top).values, logits.nbytes)


def sampling_cases(
    ops: CudaOps, device: torch.device, vocabs: Iterable[int] = VOCABS, all_rows: Iterable[int] = ROWS
) -> Iterator[Case]:
    for vocab in vocabs:
        for rows in all_rows:
            logits = torch.randn(rows, vocab, device=device) * 3
            for top_k, top_p in FILTERS:
                yield sample_case(ops, logits, top_k, top_p)
            yield masked_case(ops, logits)
            yield logprobs_case(ops, logits, 5)
