"""How much prefill may a step hold besides decoding rows, and which rows get it?

A token's cost grows linearly with the context it attends to. In units in which a token at the start of its
sequence costs 2 D, where D is the context that doubles its cost, n tokens after a context of c cost

    n (2 D + 2 c + n)

so the number that still fits is found with an integer square root.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import NamedTuple

import numpy as np

from splitserve.engine_core.scheduler.running import IntColumn


class PrefillCap(NamedTuple):
    """What a step may spend on prefill while any row decodes.

    Attributes:
        num_tokens: the time to spend, in tokens at the start of their sequences; at least 0.
        doubling_context: tokens of context that double a token's cost; at least 1.
        min_tokens: tokens that may be computed whatever they cost; at least 1.
        max_context: most tokens of context that count; a chunk's own tokens count in addition.
    """

    num_tokens: int
    doubling_context: int
    min_tokens: int
    max_context: int = 2**31


# Returns the cap for a number of decoding rows.
CapBeside = Callable[[int], PrefillCap]


class PrefillRoom:
    """What is left of a step's cap while rows take their share of it, one after the other.

    Args:
        cap: of the step.
        max_tokens: limit on tokens besides the cap, at least 1.
    """

    __slots__ = ("_beginning", "_left", "_max_context", "_max_tokens", "_min_tokens")

    def __init__(self, cap: PrefillCap, max_tokens: int) -> None:
        self._beginning = cap.doubling_context
        self._left = 2 * cap.doubling_context * cap.num_tokens
        self._max_context = cap.max_context
        self._max_tokens = max_tokens
        self._min_tokens = cap.min_tokens

    @property
    def is_open(self) -> bool:
        """Whether a token at the start of its sequence still fits."""
        return self._max_tokens > 0 and (self._left > 2 * self._beginning or self._min_tokens > 0)

    def take(self, wanted: int, context: int) -> int:
        """Take room for a row's next tokens and return how many fit; a row that is cut takes all the rest.

        Args:
            wanted: tokens the row would compute, at least 1.
            context: tokens of the sequence before them.

        Returns:
            At least 1 if the room is open, else 0.
        """
        if not self.is_open:
            return 0
        token = self._beginning + min(context, self._max_context)
        fitting = isqrt(token * token + max(0, self._left)) - token
        num_tokens = min(wanted, self._max_tokens, max(fitting, self._min_tokens, 1))
        if num_tokens < wanted:
            self._max_tokens = 0
        else:
            self._max_tokens -= num_tokens
            self._min_tokens -= num_tokens
            self._left -= num_tokens * (2 * token + num_tokens)
        return num_tokens


def cap_prefill(room: PrefillRoom, num_tokens: IntColumn, contexts: IntColumn) -> IntColumn:
    """Cut the chunks of prefilling rows so that together they fit the room; first rows are served first.

    Args:
        room: of the step; what is left of it afterwards is for new requests.
        num_tokens: int64 [n]; what rows want, in order; a row that wants one token decodes and keeps it.
        contexts: int64 [n]; tokens the rows have computed.

    Returns:
        int64 [n]; may hold zeros.
    """
    prefilling = (num_tokens > 1).nonzero()[0]
    capped = np.minimum(num_tokens, 1)
    capped[prefilling] = 0
    for i, wanted, context in zip(
        prefilling.tolist(), num_tokens[prefilling].tolist(), contexts[prefilling].tolist(), strict=True
    ):
        if not room.is_open:
            break
        capped[i] = room.take(wanted, context)
    return capped
