"""Loads the compiled kernel library of this package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tvm_ffi


def load_library(name: str) -> Any:
    """Load worker/_lib/lib<name>.so, or that of the package <name>: splitserve_cuda has a wheel of its own.

    Returns:
        A tvm_ffi.Module; its attributes are the exported functions.

    Raises:
        ImportError: the library has not been built.
    """
    path = _path(name)
    if not path.is_file():
        # If no GPU was visible at build time, as in a container, the CUDA build must be requested explicitly.
        needs = (
            ", with nvcc 12.4 or newer and SPLITSERVE_CUDA=1, or `pip install splitserve-cuda`"
            if name.endswith("_cuda")
            else ""
        )
        raise ImportError(
            f"{path} is missing: build it with `pip install -e . --no-deps` (see docs/kernels.md){needs}"
        )
    return tvm_ffi.load_module(str(path))


def _path(name: str) -> Path:
    own = Path(__file__).parent / "_lib" / f"lib{name}.so"
    package = None if own.is_file() else find_spec(name)
    return own if package is None or package.origin is None else Path(package.origin).parent / own.name
