"""Limits read from made-up control groups."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from splitserve.worker.host import available_memory_bytes, usable_cores
from splitserve.worker.kv_cache.layout import BlockShape
from splitserve.worker.pages import zero_pages


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def meminfo(folder: Path, available_kib: int) -> Path:
    path = folder / "meminfo"
    path.write_text(f"MemTotal: 99999999 kB\nMemFree: 5 kB\nMemAvailable: {available_kib} kB\n")
    return path


def test_without_limits_the_machine_decides(tmp_path: Path) -> None:
    write(tmp_path, cpu__max="max 100000", memory__max="max", memory__current="5")
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))
    assert available_memory_bytes(tmp_path, meminfo(tmp_path, 1000)) == 1000 * 1024


def test_a_cpu_quota_is_rounded_down_but_leaves_one_core(tmp_path: Path) -> None:
    write(tmp_path, cpu__max="150000 100000")
    assert usable_cores(tmp_path) == 1
    write(tmp_path, cpu__max="20000 100000")
    assert usable_cores(tmp_path) == 1


def test_the_older_layout_is_read_too(tmp_path: Path) -> None:
    write(tmp_path / "cpu", cpu__cfs_quota_us="100000", cpu__cfs_period_us="100000")
    write(tmp_path / "memory", memory__limit_in_bytes="70000", memory__usage_in_bytes="20000")
    assert usable_cores(tmp_path) == 1
    assert available_memory_bytes(tmp_path, meminfo(tmp_path, 1000)) == 50000


def test_file_pages_count_as_free_and_overuse_as_nothing_left(tmp_path: Path) -> None:
    write(
        tmp_path, memory__max="70000", memory__current="60000", memory__stat="anon 9\ninactive_file 30000\n"
    )
    assert available_memory_bytes(tmp_path, meminfo(tmp_path, 1000)) == 40000
    write(tmp_path, memory__stat="anon 9\n", memory__current="80000")
    assert available_memory_bytes(tmp_path, meminfo(tmp_path, 1000)) == 0


def test_an_unlimited_older_group_is_no_limit(tmp_path: Path) -> None:
    write(tmp_path / "memory", memory__limit_in_bytes=str(2**63 - 4096), memory__usage_in_bytes="1")
    write(tmp_path / "cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert available_memory_bytes(tmp_path, meminfo(tmp_path, 1000)) == 1000 * 1024
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))


def test_a_cache_is_zero_writable_and_not_backed_before_it_is_written() -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident_bytes()
    cache = zero_pages((64, 2, 16, 2**16), torch.bfloat16)
    assert cache.nbytes == 256 << 20
    cache[5] = 1.0
    assert (float(cache[5].sum()), float(cache[6].abs().sum())) == (2.0 * 16 * 2**16, 0.0)
    assert resident_bytes() - before < 64 << 20


def test_a_block_takes_keys_and_values_of_every_layer() -> None:
    assert BlockShape(3, 2, 16, 8, torch.bfloat16).num_bytes == 2 * 3 * 2 * 16 * 8 * 2
    assert BlockShape(3, 2, 16, 8, torch.uint8).num_bytes == 2 * 3 * 2 * 16 * 8
    assert BlockShape(3, 2, 16, 8, torch.int8).num_bytes == 2 * 3 * 2 * 16 * (8 + 2)
