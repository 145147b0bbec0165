"""Loads the compiled kernel library of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm_ffi


def load_library(name: str) -> Any:
    """Load worker/_lib/lib<name>.so.

    Returns:
        A tvm_ffi.Module; its attributes are the exported functions.

    Raises:
        ImportError: the library has not been built.
    """
    path = Path(__file__).parent / "_lib" / f"lib{name}.so"
    if not path.is_file():
        # If no GPU was visible at build time, as in a container, the CUDA build must be requested explicitly.
        needs = ", with nvcc 12.4 or newer and SPLITSERVE_CUDA=1" if name.endswith("_cuda") else ""
        raise ImportError(
            f"{path} is missing: build it with `pip install -e . --no-deps` (see docs/kernels.md){needs}"
        )
    return tvm_ffi.load_module(str(path))
