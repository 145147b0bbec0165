"""Calls sample() with defaults, and computes by sorting which tokens the filters keep."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops


@dataclass(slots=True, frozen=True)
class Filters:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def draw(logits: Tensor, filters: Filters, seeds: Tensor, positions: Tensor, *masks: Tensor) -> Tensor:
    """int64 [R]: one token per row of logits; masks and the row that each row has of them may follow."""
    rows = logits.shape[0]
    out = torch.empty(rows, dtype=torch.int32)
    ops.sampling.sample(
        out,
        logits,
        torch.full((rows,), filters.temperature),
        torch.full((rows,), filters.top_k, dtype=torch.int32),
        torch.full((rows,), filters.top_p),
        torch.full((rows,), filters.min_p),
        seeds,
        positions,
        *masks,
    )
    return out.long()


def mask_bits(allowed: Tensor) -> Tensor:
    """int32 [N, ceil(V / 32)] for bool [N, V], as sample() takes it."""
    words = torch.zeros(allowed.shape[0], -(-allowed.shape[1] // 32), dtype=torch.int64)
    for i, token in allowed.nonzero().tolist():
        words[i, token // 32] |= 1 << token % 32
    return torch.from_numpy(words.numpy().astype(np.uint32).view(np.int32))


def draw_many(row: Tensor, filters: Filters, count: int) -> Tensor:
    """`count` draws from one row of logits, over seeds and positions."""
    index = torch.arange(count)
    return draw(row.expand(count, -1), filters, index % 97 * 0x9E3779B9, index // 97)


def kept_tokens(row: Tensor, filters: Filters) -> set[int]:
    """Tokens that min_p, then top_k, then top_p leave, from a full sort in float64."""
    order = sorted(range(len(row)), key=lambda i: (-row[i].item(), i))
    probabilities = (row.double() / filters.temperature).softmax(0)
    if filters.min_p > 0:
        least = filters.min_p * probabilities.max()
        order = [i for i in order if probabilities[i] >= least]
    if filters.top_k > 0:
        order = order[: filters.top_k]
    if filters.top_p < 1:
        mass = probabilities[order].cumsum(0) / probabilities[order].sum()
        order = order[: int((mass < filters.top_p).sum()) + 1]
    return set(order)
