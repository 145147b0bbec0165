"""Builds the native libraries with CMake and places each in the package that loads it."""

from __future__ import annotations

import functools
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
# The first that compiles C++20 and knows every architecture and library call in use.
OLDEST_NVCC = (12, 4)


def find_tool(name: str, bin_dir_constant: str) -> str | None:
    """Path of a build tool: from its pip package in this environment, else from PATH."""
    try:
        bin_dir = getattr(importlib.import_module(name), bin_dir_constant)
    except (ImportError, AttributeError):
        return shutil.which(name)
    return shutil.which(name, path=bin_dir) or shutil.which(name)


def require_compiler() -> None:
    """Stop with a sentence, not with a CMake trace, when no C++ compiler is installed."""
    compiler = os.environ.get("CXX", "")
    candidates = shlex.split(compiler)[:1] if compiler else ["c++", "g++", "clang++"]
    if not any(shutil.which(candidate) for candidate in candidates):
        raise SystemExit(
            f"error: no C++ compiler found (looked for {', '.join(candidates)}). SplitServe's native code is "
            "built from source: install g++ 12 or newer (Debian/Ubuntu: apt install g++), or set CXX."
        )


@functools.cache
def find_nvcc() -> str:
    """Path of a CUDA compiler that can build the kernels, "" if there is none or it is not wanted.

    It is looked for in CUDACXX, on PATH and in /usr/local/cuda; CMAKE_ARGS=-DSPLITSERVE_NVCC= leaves it out.
    """
    if "-DSPLITSERVE_NVCC=" in shlex.split(os.environ.get("CMAKE_ARGS", "")):
        return ""
    on_path = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    nvcc = os.environ.get("CUDACXX") or on_path
    if nvcc is None:
        return ""
    told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    release = re.search(r"release (\d+)\.(\d+)", told)
    if release is None or (int(release[1]), int(release[2])) < OLDEST_NVCC:
        print(f"{nvcc} is not CUDA {'.'.join(map(str, OLDEST_NVCC))} or newer", file=sys.stderr)
        return ""
    return nvcc


def native_libraries() -> list[Extension]:
    """The frontend's library, the CPU kernels, and the CUDA kernels where there is a compiler for them."""
    names = ["frontend._lib.libsplitserve_frontend", "worker._lib.libsplitserve_cpu"]
    if find_nvcc():
        names.append("worker._lib.libsplitserve_cuda")
    else:
        print("no nvcc: the CUDA kernels are left out", file=sys.stderr)
    return [Extension(name, sources=[]) for name in names]


def tvm_ffi_cmake_dir() -> str:
    """Folder of the CMake package of apache-tvm-ffi, as `tvm-ffi-config --cmakedir` prints it."""
    command = [sys.executable, "-m", "tvm_ffi.config", "--cmakedir"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class CMakeBuild(build_ext):
    """Runs CMake for each library; the build folder is kept, so a rebuild compiles what changed."""

    def get_ext_filename(self, fullname: str) -> str:
        """Plain shared-library name: the library does not depend on the Python version."""
        return fullname.replace(".", os.sep) + ".so"

    def copy_extensions_to_source(self) -> None:
        """Place the libraries in the source tree, for an editable install."""
        for ext in self.extensions:
            (ROOT / self.get_ext_filename(ext.name)).parent.mkdir(exist_ok=True)
        super().copy_extensions_to_source()

    def build_extension(self, ext: Extension) -> None:
        """Configure and build one library and copy it to where setuptools wants it."""
        require_compiler()
        cmake = find_tool("cmake", "CMAKE_BIN_DIR")
        if cmake is None:
            raise SystemExit("error: cmake not found; install it with `pip install cmake`.")
        ninja = find_tool("ninja", "BIN_DIR")
        build_dir = ROOT / "build" / ("ninja" if ninja else "make")
        configure = [
            cmake,
            f"-S{ROOT}",
            f"-B{build_dir}",
            f"-Dtvm_ffi_DIR={tvm_ffi_cmake_dir()}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DSPLITSERVE_NVCC={find_nvcc()}",
        ]
        if ninja:
            # Given anew each time: with build isolation the path of the last build is gone.
            configure += ["-GNinja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        configure += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        library = ext.name.rpartition(".")[2]
        build = [cmake, "--build", str(build_dir), "--target", library.removeprefix("lib")]
        if self.parallel or "CMAKE_BUILD_PARALLEL_LEVEL" not in os.environ:
            build += ["--parallel", str(self.parallel or os.cpu_count() or 1)]
        subprocess.run(configure, check=True)
        subprocess.run(build, check=True)
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        # A running process may have the old library mapped: replace the file, do not write into it.
        partial = target.with_suffix(".tmp")
        shutil.copy2(build_dir / "lib" / f"{library}.so", partial)
        partial.replace(target)


class PlatformWheel(bdist_wheel):
    """Tags the wheel for the platform but for every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """Wheel tag, for example ("py3", "none", "linux_x86_64")."""
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=native_libraries(),
    cmdclass={"build_ext": CMakeBuild, "bdist_wheel": PlatformWheel},
)
