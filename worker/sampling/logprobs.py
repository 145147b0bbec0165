"""Logprobs for the wire, taken from raw logits: of sampled tokens and of prompt tokens alike."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from splitserve.engine_core.ipc.codec import pack_float32, pack_int32
from splitserve.engine_core.ipc.wire import TokenLogprobs
from splitserve.engine_core.ipc.worker_messages import RowError
from splitserve.worker.device.base import Array, Device

# Rank of a token in logits that hold a NaN or an infinity, where there is no order.
NO_RANK = 0


class Wanted(NamedTuple):
    """Which logprobs to take from a logits tensor, one entry per result.

    Attributes:
        keys: int32 [P], `key` of the results.
        indices: int32 [P], rows of the logits.
        token_ids: int32 [P], the token whose logprob and rank come first.
        token_indices: int32 [P], `token_index` of the results.
        num_top: int32 [P], top alternatives of each.
        asked: int32 ids by index of the entry; their logprobs go behind the alternatives.
    """

    keys: npt.NDArray[np.int32]
    indices: npt.NDArray[np.int32]
    token_ids: npt.NDArray[np.int32]
    token_indices: npt.NDArray[np.int32]
    num_top: npt.NDArray[np.int32]
    asked: Mapping[int, npt.NDArray[np.int32]] = MappingProxyType({})


def gather_logprobs(device: Device, logits: torch.Tensor, wanted: Wanted) -> list[TokenLogprobs]:
    """Log-softmax of raw logits at the wanted rows: the token, its rank, top alternatives, ids asked for.

    Args:
        device: of the logits.
        logits: float32 [S, V].
        wanted: what to take from it.

    Returns:
        One entry per wanted row, in order; its rank is NO_RANK where the logits are not numbers.
    """
    count, width = len(wanted.keys), 1 + min(int(wanted.num_top.max(initial=0)), logits.shape[1])
    if not count:
        return []
    # One buffer for all that is found, so that it comes in one copy and is waited for once.
    sizes = [count * width, count * width, count, sum(map(len, wanted.asked.values()))]
    packed = device.empty((sum(sizes),), torch.int32)
    token_ids, logprobs, ranks, asked = torch.split_with_sizes(packed, sizes)
    given = device.place([torch.from_numpy(wanted.indices), torch.from_numpy(wanted.token_ids)])
    shaped = token_ids.view(count, width), logprobs.view(torch.float32).view(count, width)
    device.ops.sampling.top_logprobs(*shaped, ranks, logits, *given)
    if wanted.asked:
        _score_asked(device, asked.view(torch.float32), logits, wanted)
    found = np.split(device.fetch(packed), np.cumsum(sizes)[:-1])
    return _entries(wanted, width, *found)


def _score_asked(device: Device, out: torch.Tensor, logits: torch.Tensor, wanted: Wanted) -> None:
    """Enqueue the logprobs of the ids asked for, of all rows in one call."""
    ends = np.cumsum([0, *map(len, wanted.asked.values())], dtype=np.int32)
    columns = wanted.indices[list(wanted.asked)], ends, np.concatenate(list(wanted.asked.values()))
    given = device.place([torch.from_numpy(column) for column in columns])
    device.ops.sampling.token_logprobs(out, logits, *given)


def _entries(
    wanted: Wanted, width: int, token_ids: Array, logprobs: Array, ranks: Array, asked: Array
) -> list[TokenLogprobs]:
    """One per wanted row; the arrays are flat and int32, the bits of floats among them."""
    ids, values = token_ids.reshape(-1, width), logprobs.view(np.float32).reshape(-1, width)
    ends = (1 + np.minimum(wanted.num_top, width - 1)).tolist()
    keys, token_indices, rank = wanted.keys.tolist(), wanted.token_indices.tolist(), ranks.tolist()
    entries = [
        TokenLogprobs(
            keys[i],
            token_indices[i],
            rank[i],
            pack_int32(ids[i, : ends[i]]),
            pack_float32(values[i, : ends[i]]),
        )
        for i in range(len(keys))
    ]
    begin, of_asked = 0, asked.view(np.float32)
    for i, some in wanted.asked.items():
        entries[i] = msgspec.structs.replace(
            entries[i],
            token_ids=entries[i].token_ids + pack_int32(some),
            logprobs=entries[i].logprobs + pack_float32(of_asked[begin : begin + len(some)]),
        )
        begin += len(some)
    return entries


def numerical_error(row: int) -> RowError:
    """The error of a row for which the model computed something that is not a number."""
    return RowError(row, "numerical_error", "the model's output for this request is not a number")
