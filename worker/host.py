"""How many cores and how much memory this process may use, given its affinity mask and cgroup limits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
# A cgroup v1 controller without a limit reports a number near 2**63.
_UNLIMITED_BYTES = 2**60


def usable_cores(cgroup_root: Path = _CGROUP_ROOT) -> int:
    """Cores this process may run on: the affinity mask, limited by the cgroup's CPU quota; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _cgroup_folders("cpu", cgroup_root):
        quota = _cpu_quota(folder)
        if quota is not None:
            allowed = min(allowed, max(1, int(quota)))
    return max(1, allowed)


def available_memory_bytes(cgroup_root: Path = _CGROUP_ROOT, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes this process may still allocate: MemAvailable, limited by the cgroups."""
    available = _mem_available(meminfo)
    for folder in _cgroup_folders("memory", cgroup_root):
        left = _cgroup_memory_left(folder)
        if left is not None:
            available = min(available, left)
    return max(0, available)


def _cgroup_folders(controller: str, root: Path) -> Iterator[Path]:
    """Folders whose limits apply to this process: its own groups up to the root, v1's mount, the root."""
    try:
        own = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        own = []
    for line in own:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            base = root / controller if controllers else root
            group = base / path.lstrip("/")
            while group != base and base in group.parents:
                yield group
                group = group.parent
    yield root / controller
    yield root


def _cpu_quota(folder: Path) -> float | None:
    """Cores the group may use per period, None without a limit."""
    fields = _read_fields(folder / "cpu.max")
    if len(fields) < 2:
        fields = _read_fields(folder / "cpu.cfs_quota_us") + _read_fields(folder / "cpu.cfs_period_us")
    if len(fields) < 2 or not (fields[0].isdigit() and fields[1].isdigit()) or fields[1] == "0":
        return None
    return int(fields[0]) / int(fields[1])


def _cgroup_memory_left(folder: Path) -> int | None:
    """Bytes the group may still allocate, None without a limit; reclaimable file pages count as free."""
    for limit_name, used_name in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit, used = _read_fields(folder / limit_name), _read_fields(folder / used_name)
        if limit and used and limit[0].isdigit() and int(limit[0]) < _UNLIMITED_BYTES:
            return int(limit[0]) - int(used[0]) + _inactive_file_bytes(folder / "memory.stat")
    return None


def _inactive_file_bytes(stat: Path) -> int:
    fields = _read_fields(stat)
    return int(fields[fields.index("inactive_file") + 1]) if "inactive_file" in fields else 0


def _mem_available(meminfo: Path) -> int:
    fields = _read_fields(meminfo)
    if "MemAvailable:" in fields:
        return int(fields[fields.index("MemAvailable:") + 1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _read_fields(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
