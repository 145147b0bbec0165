"""Exchanges between ranks of one machine through memory that they share; kernels, so that they are recorded.

T: rows, N: columns. As in worker.ops.interface, wrong ranks and shapes raise ValueError, wrong dtypes
TypeError. A rank that waits in vain raises RankLostError; StepAbandonedError if the other has abandoned the
step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import tvm_ffi

from splitserve.engine_core.errors import RankLostError
from splitserve.worker._native import load_library
from splitserve.worker.parallel.group import StepAbandonedError

if TYPE_CHECKING:
    from torch import Tensor

_lib = load_library("splitserve_cpu")
_sum = _lib.exchange_sum
_gather = _lib.exchange_gather
_settle = _lib.exchange_settle
_abandon = _lib.exchange_abandon

tvm_ffi.register_error("RankLostError", RankLostError)
tvm_ffi.register_error("StepAbandonedError", StepAbandonedError)

# Words of Exchange.own.
OWN_WORDS = 4
TIMEOUT_NS = 1


class Exchange(NamedTuple):
    """What a rank knows of the memory; every rank has to make the same calls in the same order.

    Attributes:
        memory: uint8 [num_bytes(size)], zero at first, mapped by all ranks; recorded calls read and write it.
        own: int64 [OWN_WORDS], of this rank alone: what it has exchanged, 0 at first, but at TIMEOUT_NS the
            longest wait for another rank in nanoseconds.
        rank: of this process among the ranks.
        size: how many ranks there are, at most 64.
    """

    memory: Tensor
    own: Tensor
    rank: int
    size: int


def num_bytes(size: int) -> int:
    """Bytes that so many ranks share: half a MiB each; small exchanges touch few pages of it."""
    return int(_lib.exchange_bytes(size))


def sum_into(exchange: Exchange, out: Tensor, partial: Tensor, bias: Tensor | None) -> None:
    """Write the sum of all ranks' partial sums and a bias to out, added in the order of the ranks in float32.

    Args:
        exchange: of this rank.
        out: bfloat16 or float32 [T, N], contiguous.
        partial: float32 [T, N] or like out, contiguous.
        bias: [N] like out, or None.
    """
    _sum(*exchange, out, partial, bias)


def gather_columns(exchange: Exchange, out: Tensor | None, columns: Tensor, num_columns: int) -> None:
    """Put the columns of all ranks side by side on rank 0.

    Args:
        exchange: of this rank.
        out: float32 [T, num_columns], contiguous, on rank 0; None on the others.
        columns: float32 [T, n], contiguous; n is worker.parallel.shares.share of num_columns.
        num_columns: of all ranks together.
    """
    _gather(*exchange, out, columns, num_columns)


def settle(exchange: Exchange, values: Tensor) -> None:
    """Overwrite int32 [n] by that of rank 0, once all ranks have come: a step ends so, and stands."""
    _settle(*exchange, values)


def abandon(exchange: Exchange) -> None:
    """Drop what was exchanged since the last settle(); returns once all ranks have called this."""
    _abandon(*exchange)
