"""A library for one machine: it has that processor's kernels, and says so on another one."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import tvm_ffi
from tvm_ffi.libinfo import find_dlpack_include_path, find_include_path, find_libtvm_ffi

ROOT = Path(__file__).resolve().parents[3]
COMPILER = shutil.which("c++") or shutil.which("g++")
pytestmark = pytest.mark.skipif(
    COMPILER is None or platform.machine() != "x86_64", reason="needs a C++ compiler and an x86-64 CPU"
)
NAMES = ("portable", "avx2", "avx512", "avx512_bf16", "amx")
CALL = """
#include "cpu/isa.h"
struct Params {};
SPLITSERVE_DECLARE_KERNEL(plain, Params)
SPLITSERVE_DECLARE_TILE_KERNEL(tiled, Params)
void call(const Params& params) {
  SPLITSERVE_CALL_KERNEL(plain, params);
  SPLITSERVE_CALL_KERNEL(tiled, params);
}
"""


@pytest.fixture(autouse=True)
def isa() -> str:
    """The library under test is another one."""
    return ""


def compile_with(*flags: str, source: str = "") -> str:
    """Run the compiler; return what it writes."""
    command = [str(COMPILER), "-std=c++20", f"-I{ROOT / 'csrc'}", *flags]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("defines", "tiled", "plain"),
    [
        (
            [],
            {"portable", "avx2", "avx512", "avx512_bf16", "amx"},
            {"portable", "avx2", "avx512", "avx512_bf16"},
        ),
        (["-DSPLITSERVE_NATIVE=avx2"], {"avx2"}, {"avx2"}),
        (["-DSPLITSERVE_NATIVE=amx", "-DSPLITSERVE_NATIVE_TILES"], {"amx"}, {"avx512_bf16"}),
    ],
)
def test_only_kernels_that_are_there_are_called(defines: list[str], tiled: set[str], plain: set[str]) -> None:
    assembly = compile_with(*defines, "-xc++", "-S", "-o-", "-", source=CALL)
    for kernel, namespaces in (("tiled", tiled), ("plain", plain)):
        # As C++ writes names: their length, then they themselves.
        called = {name for name in NAMES if f"{len(name)}{name}5{kernel}" in assembly}
        assert called == namespaces, kernel


def test_a_library_for_another_processor_says_so(tmp_path: Path) -> None:
    library = tmp_path / "isa.so"
    # As if it were built for a processor with AMX, and loaded by one with nothing.
    compile_with(
        *("-DSPLITSERVE_OLDEST_ISA=kAmx", "-DSPLITSERVE_NEWEST_ISA=kPortable", "-O0", "-fPIC", "-shared"),
        *(f"-I{find_include_path()}", f"-I{find_dlpack_include_path()}", "-o", str(library)),
        *(str(ROOT / "csrc/cpu/isa.cpp"), str(find_libtvm_ffi())),
    )
    built = tvm_ffi.load_module(str(library))
    for ask in (built.cpu_isas, built.cpu_isa):
        with pytest.raises(RuntimeError, match="built for amx alone, and this processor runs portable"):
            ask()
