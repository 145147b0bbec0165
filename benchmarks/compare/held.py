"""How are engines held to AVX2, on a processor that has more?

Libraries are told by the variables that they document. Where the processor has AVX-VNNI, which came to those
without AVX-512, all may use it, as far as they can.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

from benchmarks.compare.engines.base import Engine

ISAS = ("avx2",)


def why_not_held(engine: Engine, root: Path, isa: str) -> str:
    """Return in one line why an engine cannot be held to an instruction set, "" if it can or need not be."""
    if not isa:
        return ""
    environment = engine.held_environment(root)
    if environment is None or platform.machine() != "x86_64":
        return f"it chooses its kernels by the processor, and cannot be held to {isa}"
    # The loader goes on without a library that it does not find.
    libraries = environment.get("LD_PRELOAD", "").split(":")
    lacking = [library for library in libraries if library and not Path(library).exists()]
    how = f"python -m benchmarks.compare setup {root} --peers {engine.venv}"
    return f"{lacking[0]} does not exist: {how}" if lacking else ""


def environment_of(engine: Engine, root: Path, isa: str = "") -> Mapping[str, str]:
    """Return what an engine's processes need in their environment, held to `isa` or, "", to nothing."""
    held = engine.held_environment(root) if isa else None
    return {**engine.environment(root), **(held or {})}
