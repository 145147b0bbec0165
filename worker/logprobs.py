"""Logprobs for the wire, taken from raw logits: of sampled tokens and of prompt tokens alike."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from engine_core.ipc.codec import pack_float32, pack_int32
from engine_core.ipc.wire import TokenLogprobs
from engine_core.ipc.worker_messages import RowError
from worker.device.base import Device

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
    token_ids = device.empty((count, width), torch.int32)
    logprobs = device.empty((count, width), torch.float32)
    ranks = device.empty((count,), torch.int32)
    given = device.place([torch.from_numpy(wanted.indices), torch.from_numpy(wanted.token_ids)])
    device.ops.top_logprobs(token_ids, logprobs, ranks, logits, *given)
    ids, values, rank = device.fetch(token_ids), device.fetch(logprobs), device.fetch(ranks).tolist()
    ends = (1 + np.minimum(wanted.num_top, width - 1)).tolist()
    keys, token_indices = wanted.keys.tolist(), wanted.token_indices.tolist()
    entries = [
        TokenLogprobs(
            keys[i],
            token_indices[i],
            rank[i],
            pack_int32(ids[i, : ends[i]]),
            pack_float32(values[i, : ends[i]]),
        )
        for i in range(count)
    ]
    return _add_asked(device, logits, wanted, entries) if wanted.asked else entries


def _add_asked(
    device: Device, logits: torch.Tensor, wanted: Wanted, entries: list[TokenLogprobs]
) -> list[TokenLogprobs]:
    """Append the ids asked for to the columns of their entries, in one call for all rows."""
    places = list(wanted.asked)
    lengths = [len(wanted.asked[i]) for i in places]
    ends, token_ids = np.cumsum([0, *lengths], dtype=np.int32), np.concatenate(list(wanted.asked.values()))
    out = device.empty((len(token_ids),), torch.float32)
    given = device.place([torch.from_numpy(column) for column in (wanted.indices[places], ends, token_ids)])
    device.ops.token_logprobs(out, logits, *given)
    logprobs = device.fetch(out)
    for i, begin, end in zip(places, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        entries[i] = msgspec.structs.replace(
            entries[i],
            token_ids=entries[i].token_ids + pack_int32(token_ids[begin:end]),
            logprobs=entries[i].logprobs + pack_float32(logprobs[begin:end]),
        )
    return entries


def numerical_error(row: int) -> RowError:
    """The error of a row for which the model computed something that is not a number."""
    return RowError(row, "numerical_error", "the model's output for this request is not a number")
