"""What do a server's processes use: CPU, memory, descriptors, threads? Linux's /proc."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks.frontend import cpu_s


class Census(msgspec.Struct, frozen=True):
    """One process at one moment; children are not counted."""

    cpu_s: float
    rss_bytes: int
    num_fds: int
    num_threads: int


def census(pid: int) -> Census:
    """Look at a process.

    Raises:
        FileNotFoundError: it has ended.
    """
    folder = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    return Census(
        cpu_s=sum(cpu_s((folder / "stat").read_text())),
        rss_bytes=1024 * int(status["VmRSS"].split()[0]),
        num_fds=len(list((folder / "fd").iterdir())),
        num_threads=int(status["Threads"]),
    )
