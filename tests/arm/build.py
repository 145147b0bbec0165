"""How do kernels of 64-bit ARM come to run here? A cross compiler builds them, qemu's user mode runs them.

apt-get install g++-aarch64-linux-gnu qemu-user
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "aarch64"
COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"
# Where Debian has the libraries of the machine that is emulated.
SYSTEM = "/usr/aarch64-linux-gnu"
# Made when the libraries of this machine are built; headers are the same on both.
TVM_FFI = ROOT / "build" / "tvm_ffi"


@functools.cache
def build() -> Path:
    """Build what is out of date, in build/aarch64; return the program of runner.cpp.

    Once in a process: a library that runs must not be written to.

    Raises:
        FileNotFoundError: a tool is missing; says which.
    """
    for tool in (COMPILER, EMULATOR):
        if shutil.which(tool) is None:
            raise FileNotFoundError(f"{tool} is not installed")
    theirs = FOLDER / "tvm_ffi"
    if not theirs.is_dir():
        _run(str(ROOT / "deploy/packages/aarch64_tvm_ffi"), sys.executable, str(theirs))
    ninja = FOLDER / "ninja"
    options = {
        "CMAKE_MAKE_PROGRAM": _tool("ninja"),
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": COMPILER,
        "SPLITSERVE_TVM_FFI": TVM_FFI,
        "SPLITSERVE_TVM_FFI_LIBRARY": theirs / "tvm_ffi/lib/libtvm_ffi.so",
    }
    configure = (_tool("cmake"), "--fresh", "-GNinja", f"-S{ROOT}", f"-B{ninja}")
    _run(*configure, *(f"-D{name}={value}" for name, value in options.items()))
    _run(_tool("cmake"), "--build", str(ninja), "--target", "splitserve_cpu")
    libraries = FOLDER / "run"
    libraries.mkdir(exist_ok=True)
    for library in (ninja / "lib/libsplitserve_cpu.so", theirs / "tvm_ffi/lib/libtvm_ffi.so"):
        shutil.copy2(library, libraries)
    runner = libraries / "runner"
    _run(
        *(COMPILER, "-std=c++20", "-O1", f"-I{TVM_FFI / 'include'}", str(ROOT / "tests/arm/runner.cpp")),
        *(f"-L{libraries}", "-Wl,--no-as-needed", "-lsplitserve_cpu", "-ltvm_ffi", "-Wl,-rpath,$ORIGIN"),
        *("-o", str(runner)),
    )
    return runner


def command(runner: Path, processor: str = "max") -> list[str]:
    """Return the command that runs it on a processor of qemu; "max" has all that qemu can do."""
    return [EMULATOR, "-cpu", processor, "-L", SYSTEM, str(runner)]


def _tool(name: str) -> str:
    """Of this environment or of the system."""
    own = Path(sys.executable).with_name(name)
    return str(own) if own.is_file() else name


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)
