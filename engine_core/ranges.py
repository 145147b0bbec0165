"""Checks of a request's values against their ranges; what is wrong is named with the range."""

from __future__ import annotations

import math
from collections.abc import Collection

from splitserve.engine_core.errors import InvalidRequestError


def check_int(name: str, value: int, low: int, high: int) -> None:
    """Raise InvalidRequestError unless low <= value <= high."""
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} must be an integer from {low} to {high}, got {value}", name)


def check_float(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    """Raise InvalidRequestError unless the value is in [low, high], or with open_low in (low, high]."""
    # The comparison is written so that NaN fails it.
    inside = (low < value if open_low else low <= value) and value <= high and math.isfinite(value)
    if not inside:
        bracket = "(" if open_low else "["
        raise InvalidRequestError(f"{name} must be a number in {bracket}{low}, {high}], got {value}", name)


def check_count(name: str, values: Collection[object], low: int, high: int, what: str) -> None:
    """Raise InvalidRequestError unless there are low to high values; `what` they are, in words."""
    if not low <= len(values) <= high:
        bounds = f"at most {high}" if low == 0 else f"{low} to {high}"
        raise InvalidRequestError(f"{name} must contain {bounds} {what}, got {len(values)}", name)


def check_strings(name: str, texts: Collection[str], max_bytes: int) -> None:
    """Raise InvalidRequestError unless each text has 1 to max_bytes bytes."""
    for i, text in enumerate(texts):
        size = len(text.encode("utf-8", "surrogatepass"))
        if not 1 <= size <= max_bytes:
            raise InvalidRequestError(
                f"{name}[{i}] must be 1 to {max_bytes} bytes long, got {size}", f"{name}[{i}]"
            )


def check_token_ids(name: str, token_ids: Collection[int], last: int) -> None:
    """Raise InvalidRequestError unless each id is from 0 to last."""
    # Up to 10,000 ids: the builtins look at them ten times as fast as a loop here would.
    if token_ids:
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id <= last:
                raise InvalidRequestError(f"{name}: token ids must be from 0 to {last}, got {token_id}", name)
