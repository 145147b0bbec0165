"""What is one input of a fuzz target? A list of pieces of bytes, as a file and as small as it can be made."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

# The pieces in the order in which the target takes them: frames, requests, or one file.
Case = list[bytes]


def save(case: Case, folder: Path, name: str) -> Path:
    """Write a case; its name ends in a digest of its contents."""
    data = msgspec.msgpack.encode(case)
    path = folder / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}.case"
    path.write_bytes(data)
    return path


def load(path: Path) -> Case:
    return msgspec.msgpack.decode(path.read_bytes(), type=Case)


def minimised(case: Case, fails: Callable[[Case], bool], max_tries: int = 400) -> Case:
    """Leave out pieces, then ends of pieces, for as long as the rest still fails."""
    tries = 0
    size = max(1, len(case) // 2)
    while len(case) > 1 and tries < max_tries:
        for start in range(0, len(case), size):
            shorter = case[:start] + case[start + size :]
            tries += 1
            if shorter and fails(shorter):
                case = shorter
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return case
