"""How are prose and word lists kept readable in the source? As wrapped blocks that these helpers unwrap."""

from __future__ import annotations


def flow(block: str) -> str:
    """Return a wrapped block of prose as one line."""
    return " ".join(block.split())


def items(block: str, separator: str = ",") -> list[str]:
    """Return the parts of a wrapped block, each as one line; empty parts are left out."""
    return [part for part in (flow(part) for part in block.split(separator)) if part]
