"""The batches of events that a subscriber can still request after missing some."""

from __future__ import annotations

from typing import NamedTuple


class NumberedBatch(NamedTuple):
    """One published batch and its place in the sequence of all, counted from 0."""

    number: int
    payload: bytes


class BatchHistory:
    """Numbers batches and keeps the last ones, bounded in count and in bytes.

    Args:
        max_batches: kept at most.
        max_bytes: their payloads together; one that alone is larger is not kept.
    """

    def __init__(self, max_batches: int, max_bytes: int) -> None:
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._payloads: dict[int, bytes] = {}
        self._num_bytes = 0
        self._oldest = 0
        self._next = 0

    def append(self, payload: bytes) -> int:
        """Keep a batch, in place of the oldest ones where necessary; return its number."""
        number = self._next
        self._next += 1
        self._payloads[number] = payload
        self._num_bytes += len(payload)
        while len(self._payloads) > self._max_batches or self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._payloads.pop(self._oldest))
            self._oldest += 1
        return number

    def first_from(self, number: int) -> NumberedBatch | None:
        """Return the first batch kept of those from `number` on, None when there is none."""
        number = max(number, self._oldest)
        payload = self._payloads.get(number)
        return None if payload is None else NumberedBatch(number, payload)
