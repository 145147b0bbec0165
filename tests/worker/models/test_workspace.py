"""Where intermediate results lie."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from splitserve.worker.device.workspace import Workspace

_MAPPINGS = Path("/proc/self/smaps")
_SHOWS_ADVICE = (
    Path("/sys/kernel/mm/transparent_hugepage").exists()
    and _MAPPINGS.exists()
    and "VmFlags:" in _MAPPINGS.read_text()
)


def test_rows_that_would_share_cache_sets_lie_a_cache_line_apart() -> None:
    workspace = Workspace(torch.bfloat16, torch.device("cpu"))
    for columns, pitch in ((2048, 2080), (1536, 1568), (512, 544), (576, 576), (64, 64)):
        rows = workspace.take_spaced("wide", 3, columns)
        assert (rows.shape, rows.stride()) == ((3, columns), (pitch, 1))


def test_a_role_keeps_its_memory_until_it_needs_more() -> None:
    workspace = Workspace(torch.float32, torch.device("cpu"))
    first = workspace.take_spaced("wide", 4, 1024)
    assert workspace.take_spaced("wide", 2, 1024).data_ptr() == first.data_ptr()
    assert workspace.generation == 1
    workspace.take_spaced("wide", 5, 1024)
    assert workspace.generation == 2


def test_other_devices_want_dense_rows() -> None:
    workspace = Workspace(torch.bfloat16, torch.device("meta"))
    assert workspace.take_spaced("wide", 3, 4096).is_contiguous()


@pytest.mark.skipif(not _SHOWS_ADVICE, reason="this kernel has no huge pages, or does not show who asked")
def test_large_buffers_ask_for_huge_pages() -> None:
    workspace = Workspace(torch.bfloat16, torch.device("cpu"))
    rows = workspace.take("many", 1024, 1024, torch.float32).fill_(1)
    assert "hg" in _flags_at(rows.data_ptr())
    assert workspace.take("few", 16, 1024).shape == (16, 1024)


def _flags_at(address: int) -> list[str]:
    """Flags of the memory mapping that holds an address."""
    holds = False
    for line in _MAPPINGS.read_text().splitlines():
        if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            holds = int(span[1], 16) <= address < int(span[2], 16)
        elif holds and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError("no such mapping")
