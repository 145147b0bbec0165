"""Runs the tests of this folder's emulation with a sanitizer in the kernels, and prints what it reports.

    python -m tests.gpu.emulated.sanitized thread tests/gpu/test_attention.py -k bf16

`thread` finds accesses to memory of which no barrier says that one comes before the other, in whatever order
the threads happened to run. It knows of the threads of one cluster only: thread blocks run one after the
other. `address` finds accesses outside of a tensor or of shared memory. Both want GCC.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.gpu.emulated.build import ROOT, SANITIZERS, build, compiler

# libstdc++ for exceptions, which the interpreter has not loaded so early.
_RUNTIMES = {"thread": ["libtsan.so"], "address": ["libasan.so", "libstdc++.so"]}
# What a finding says. The address sanitizer also notes that threads change their stacks.
_FINDINGS = ("WARNING: ThreadSanitizer", "ERROR: AddressSanitizer", "CHECK failed")
_OPTIONS = {
    # Other libraries tell it nothing of their threads.
    "thread": ("TSAN_OPTIONS", "history_size=2:ignore_noninstrumented_modules=1"),
    # An interpreter that ends leaves memory behind, which is no fault of a kernel.
    "address": ("ASAN_OPTIONS", "detect_leaks=0"),
}


def environment(sanitizer: str, reports: Path) -> dict[str, str]:
    """What a process needs that loads a library with a sanitizer: its runtime before all else."""
    name, options = _OPTIONS[sanitizer]
    runtimes = " ".join(map(_library, _RUNTIMES[sanitizer]))
    return {**os.environ, "LD_PRELOAD": runtimes, name: f"{options}:log_path={reports}"}


def _library(name: str) -> str:
    asked = [compiler(), f"-print-file-name={name}"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def where_it_always_lies() -> list[str]:
    """The start of a command whose memory must not be laid out at random; empty where that is forbidden."""
    prefix = ["setarch", "-R"]
    allowed = shutil.which(prefix[0]) and subprocess.run([*prefix, "true"], check=False).returncode == 0
    return prefix if allowed else []


def main(sanitizer: str, arguments: list[str]) -> int:
    """Return 0 if the tests pass and nothing is reported."""
    folder = build(sanitizer).parent
    for old in folder.glob("report.*"):
        old.unlink()
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "not gpu", f"--sanitizer={sanitizer}"]
    command = [*where_it_always_lies(), *tests, *(arguments or ["tests/gpu"])]
    done = subprocess.run(command, cwd=ROOT, env=environment(sanitizer, folder / "report"), check=False)
    reports = [report.read_text() for report in sorted(folder.glob("report.*"))]
    findings = [report for report in reports if any(words in report for words in _FINDINGS)]
    print("\n".join(findings) or "nothing reported")
    return done.returncode or bool(findings)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in filter(None, SANITIZERS):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
