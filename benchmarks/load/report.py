"""What did a run of a level find, and does it pass?"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

import msgspec

from benchmarks.load.figures import Spread

Figure = Spread | float | int | str


class Check(msgspec.Struct, frozen=True):
    """A promise of a level."""

    what: str
    found: str
    wanted: str
    passed: bool


class LevelReport(msgspec.Struct):
    """A run of one level: options, machine, figures by name, and checks."""

    level: str
    options: dict[str, float]
    machine: dict[str, str]
    figures: dict[str, Figure] = {}
    checks: list[Check] = []

    @property
    def passed(self) -> bool:
        """Whether every promise was kept."""
        return all(check.passed for check in self.checks)

    def at_most(self, what: str, found: float, limit: float, unit: str = "") -> None:
        """Note whether a figure stays within its limit."""
        self.checks.append(Check(what, f"{found:.4g}{unit}", f"<= {limit:g}{unit}", found <= limit))

    def at_least(self, what: str, found: float, limit: float, unit: str = "") -> None:
        """Note whether a figure reaches its limit."""
        self.checks.append(Check(what, f"{found:.4g}{unit}", f">= {limit:g}{unit}", found >= limit))

    def text(self) -> str:
        """Return the report for a reader."""
        lines = [f"{self.level}: " + ", ".join(f"{name} {value:g}" for name, value in self.options.items())]
        for name, value in self.figures.items():
            lines.append(f"  {name:<36} {value:.4g}" if isinstance(value, float) else f"  {name:<36} {value}")
        for check in self.checks:
            word = "kept" if check.passed else "NOT KEPT"
            lines.append(f"  {word:<8} {check.what}: {check.found} (wanted {check.wanted})")
        return "\n".join(lines)


def new_report(level: str, options: dict[str, float]) -> LevelReport:
    """Return a report without figures, dated."""
    machine = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "kernel": platform.release(),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }
    return LevelReport(level, options, machine)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "?")
