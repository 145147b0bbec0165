"""Whether the server's processes live on, in the same memory, and what its metrics say."""

from __future__ import annotations

import statistics

import httpx
import psutil

from tests.system.processes import Process

_ROLES = {
    "splitserve.frontend.cli": "frontend",
    "splitserve.frontend.text.chat.template_child": "template-renderer",
    "splitserve.engine_core.cli": "engine-core",
    "splitserve.worker.cli": "worker",
}
MIB = 2**20
# Growth from the end of the first third to the end of the run that still counts as flat: allocators keep a
# few pages more here and there.
ALLOWED_GROWTH_BYTES = 4 * MIB
ALLOWED_GROWTH_SHARE = 0.03


class Figures:
    """The sum of each metric over its labels, as GET /metrics tells it."""

    def __init__(self, url: str) -> None:
        self._values: dict[str, float] = {}
        for line in httpx.get(f"{url}/metrics", timeout=10).text.splitlines():
            if not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                name = series.split("{")[0].removeprefix("splitserve:")
                self._values[name] = self._values.get(name, 0.0) + float(value)

    def __getitem__(self, name: str) -> float:
        """The metric of this name, without `splitserve:`."""
        return self._values[name]

    @property
    def is_idle(self) -> bool:
        """Nothing runs or waits, and every block is free (which those holding a reusable prefix are)."""
        busy = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return all(self[name] == 0 for name in busy)


class MemoryWatch:
    """Samples the resident memory of a server's processes, which must stay the same processes."""

    def __init__(self, server: Process) -> None:
        self._processes = {"serve": psutil.Process(server.pid)}
        for child in sorted(server.children(), key=lambda child: child.pid):
            role = next((role for module, role in _ROLES.items() if module in child.cmdline()), None)
            if role is None:
                # Those in which a frontend renders templates come and go.
                continue
            number = sum(name.startswith(role) for name in self._processes)
            self._processes[f"{role} {number}" if number else role] = child
        self._samples: dict[str, list[int]] = {name: [] for name in self._processes}

    def sample(self) -> None:
        """Note what each process takes now.

        Raises:
            AssertionError: one has ended.
        """
        for name, process in self._processes.items():
            assert process.is_running(), f"{name} has ended"
            self._samples[name].append(process.memory_info().rss)

    def growth(self) -> dict[str, tuple[int, int]]:
        """Bytes of each process after the first third of the samples, and at the end."""
        return {name: before_and_after(samples) for name, samples in self._samples.items()}


def before_and_after(samples: list[int]) -> tuple[int, int]:
    """Return the medians of the twelfth of the samples that ends the first third, and of the last twelfth."""
    third, width = max(1, len(samples) // 3), max(1, len(samples) // 12)
    return (
        int(statistics.median(samples[max(0, third - width) : third])),
        int(statistics.median(samples[-width:])),
    )


def is_flat(before: int, after: int) -> bool:
    """Whether a process that grew from `before` bytes to `after` leaks nothing that shows."""
    return after - before <= max(ALLOWED_GROWTH_BYTES, ALLOWED_GROWTH_SHARE * before)
