"""Recorded traces: one request per line of a JSONL or CSV file.

    arrival_s       seconds from any start; lines may come in any order
    prompt_tokens   1..10**6
    output_tokens   1..10**6
    prefix_group    optional text; requests with the same text share the start of their prompts
    prefix_tokens   optional, 0..prompt_tokens-1; needs a prefix_group
    tenant          optional text
    priority        optional integer, lower is better

A CSV file has these names in its first line, in any order. Other names are refused.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import numpy as np

from benchmarks.simulation.trace import NO_GROUP, IntColumn, Trace
from splitserve.engine_core.errors import ConfigError

_Count = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
_Key = TypeVar("_Key")


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line; the module's docstring explains the fields."""

    arrival_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    prompt_tokens: _Count
    output_tokens: _Count
    prefix_group: str = ""
    prefix_tokens: Annotated[int, msgspec.Meta(ge=0, le=10**6)] = 0
    tenant: str = ""
    priority: Annotated[int, msgspec.Meta(ge=-(2**31) + 1, le=2**31 - 1)] = 0


def read_trace(path: Path) -> Trace:
    """Read a trace, sorted by arrival and moved to start at 0.

    Raises:
        ConfigError: the file cannot be read, is empty or has a bad line; names the line and the field.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = _from_csv(file, path) if path.suffix == ".csv" else _from_jsonl(file, path)
            requests = sorted(rows, key=lambda request: request.arrival_s)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"trace {path}: {error}") from None
    if not requests:
        raise ConfigError(f"trace {path} holds no requests")
    return _columns(requests)


def _from_jsonl(lines: Iterable[str], path: Path) -> Iterator[RecordedRequest]:
    decoder = msgspec.json.Decoder(RecordedRequest)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _checked(decoder.decode(line))
        except (msgspec.DecodeError, ValueError) as error:
            raise ConfigError(f"trace {path}, line {number}: {error}") from None


def _from_csv(lines: Iterable[str], path: Path) -> Iterator[RecordedRequest]:
    # A value past the last name is filed under "", which no field is called.
    for number, row in enumerate(csv.DictReader(lines, restkey=""), 2):
        given = {name: value for name, value in row.items() if value not in ("", None)}
        try:
            yield _checked(msgspec.convert(given, RecordedRequest, strict=False))
        except (msgspec.ValidationError, ValueError) as error:
            raise ConfigError(f"trace {path}, line {number}: {error}") from None


def _checked(request: RecordedRequest) -> RecordedRequest:
    if request.prefix_tokens and not request.prefix_group:
        raise ValueError("prefix_tokens needs a prefix_group")
    if request.prefix_tokens >= request.prompt_tokens:
        raise ValueError(f"prefix_tokens must be below prompt_tokens, {request.prompt_tokens}")
    return request


def _columns(requests: list[RecordedRequest]) -> Trace:
    arrival_s = np.array([request.arrival_s for request in requests])
    group = _numbered([request.prefix_group for request in requests])
    shared = np.array([request.prefix_tokens for request in requests], np.int64)
    return Trace(
        arrival_s=arrival_s - arrival_s[0],
        prompt_tokens=np.array([request.prompt_tokens for request in requests], np.int64),
        output_tokens=np.array([request.output_tokens for request in requests], np.int64),
        prefix_group=np.where(shared > 0, group, NO_GROUP),
        prefix_tokens=shared,
        tenant=_numbered([request.tenant for request in requests]),
        priority=np.array([request.priority for request in requests], np.int64),
    )


def _numbered(names: list[_Key]) -> IntColumn:
    """Number names by their first appearance."""
    numbers: dict[_Key, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
