"""What `splitserve env` prints: versions, processor, memory, kernels; another process loads torch."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from splitserve.engine_core.process.children import python_module
from splitserve.engine_core.process.version import software_version

TIMEOUT_S = 60.0
PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "huggingface_hub",
    "apache-tvm-ffi",
    "flash-attn",
    "flash-attn-4",
    "ray",
    "pyzmq",
    "msgspec",
    "numpy",
    "fastapi",
    "starlette",
    "uvicorn",
    "uvloop",
    "openai",
    "aiohttp",
    "llguidance",
)
# The instruction sets that kernels are selected by, of the dozens that a processor reports.
ISA_FLAGS = (
    "avx2",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
)


def describe() -> str:
    """Return the report, one `name: value` line each."""
    facts = {
        "splitserve": software_version(),
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "processor": _cpu_field("model name") or platform.processor() or platform.machine(),
        "instruction sets": ", ".join(_instruction_sets()) or "unknown",
        "cores": f"{_usable_cores()} usable of {os.cpu_count()}",
        "memory": _memory(),
        "shared memory": _disk("/dev/shm"),
        "NVIDIA driver": _nvidia_driver(),
        "GPUs": _gpus(),
        **_kernels(),
    }
    versions = {name: _version(name) for name in PACKAGES}
    width = max(map(len, [*facts, *versions])) + 1
    return "\n".join(f"{name + ':':<{width}} {value}" for name, value in {**facts, **versions}.items())


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_field(name: str) -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        field, _, value = line.partition(":")
        if field.strip() == name:
            return value.strip()
    return ""


def _instruction_sets() -> list[str]:
    present = set((_cpu_field("flags") or _cpu_field("Features")).split())
    return [flag for flag in ISA_FLAGS if flag in present]


def _memory() -> str:
    fields = dict(line.split(":", 1) for line in _read("/proc/meminfo").splitlines() if ":" in line)
    if "MemTotal" not in fields or "MemAvailable" not in fields:
        return "unknown"
    total, free = (int(fields[name].split()[0]) / 2**20 for name in ("MemTotal", "MemAvailable"))
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    text = f"{total:.1f} GiB, {free:.1f} GiB available"
    return f"{text}, limited to {int(limit) / 2**30:.1f} GiB" if limit.isdigit() else text


def _disk(path: str) -> str:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return "none"
    return f"{usage.total / 2**30:.1f} GiB, {usage.free / 2**30:.1f} GiB free"


def _nvidia_driver() -> str:
    first = _read("/proc/driver/nvidia/version").partition("\n")[0]
    return first.removeprefix("NVRM version:").strip() or "none"


def _gpus() -> str:
    """Return names and memory of the GPUs, one after the other."""
    said = _output(["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"])
    return "; ".join(said.splitlines()) or "none"


def _kernels() -> dict[str, str]:
    """Return which kernels run here; the worker's code says so in a process of its own, as it loads torch."""
    lines = _output(python_module("splitserve.worker.ops.kernel_report")).splitlines()
    return {name: value for name, colon, value in (line.partition(": ") for line in lines) if colon}


def _output(command: list[str]) -> str:
    try:
        asked = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.strip()


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
