"""Builds the native libraries with CMake and places each in the package that loads it."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

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
def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU that its driver knows."""
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return True
    # Under WSL there is no device file.
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
    return listed.returncode == 0 and "GPU " in listed.stdout


@functools.cache
def find_nvcc() -> str:
    """Path of a CUDA compiler that can build the kernels, "" if they are left out; says why.

    SPLITSERVE_CUDA=1 builds them without a GPU too, 0 never. The compiler is looked for in CUDACXX, on PATH
    and in /usr/local/cuda.
    """
    wanted = os.environ.get("SPLITSERVE_CUDA", "")
    if wanted not in ("", "0", "1"):
        raise SystemExit(f"error: SPLITSERVE_CUDA must be 0 or 1, got {wanted!r}")
    if not wanted and not has_gpu():
        print("no GPU here: the CUDA kernels are left out, SPLITSERVE_CUDA=1 builds them all the same")
    if wanted == "0" or (not wanted and not has_gpu()):
        return ""
    nvcc, problem = _usable_nvcc()
    if problem and wanted == "1":
        raise SystemExit(f"error: SPLITSERVE_CUDA=1, but {problem}")
    if problem:
        print(f"{problem}: the CUDA kernels are left out", file=sys.stderr)
    return nvcc


def _usable_nvcc() -> tuple[str, str]:
    """Path of nvcc and "", or "" and what is wrong."""
    on_path = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    nvcc = os.environ.get("CUDACXX") or on_path
    if nvcc is None:
        return "", "there is no nvcc in CUDACXX, on PATH or in /usr/local/cuda"
    try:
        told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError as error:
        return "", f"{nvcc} cannot be run ({error.strerror})"
    release = re.search(r"release (\d+)\.(\d+)", told)
    if release is None or (int(release[1]), int(release[2])) < OLDEST_NVCC:
        return "", f"{nvcc} is not CUDA {'.'.join(map(str, OLDEST_NVCC))} or newer"
    return nvcc, ""


def is_native() -> bool:
    """Whether only the CPU kernels that this machine's processor runs are built: SPLITSERVE_NATIVE=1."""
    wanted = os.environ.get("SPLITSERVE_NATIVE", "")
    if wanted not in ("", "0", "1"):
        raise SystemExit(f"error: SPLITSERVE_NATIVE must be 0 or 1, got {wanted!r}")
    return wanted == "1"


def native_libraries() -> list[Extension]:
    """The frontend's library, the CPU kernels, and the CUDA kernels where they are wanted."""
    names = ["splitserve.frontend._lib.libsplitserve_frontend", "splitserve.worker._lib.libsplitserve_cpu"]
    if find_nvcc():
        names.append("splitserve.worker._lib.libsplitserve_cuda")
    return [Extension(name, sources=[]) for name in names]


@functools.cache
def tvm_ffi_copy() -> Path:
    """Folder with include/ and lib/ of apache-tvm-ffi, at a path that is the same in every build.

    With build isolation the package lies somewhere else each time, and what includes its headers would be
    compiled anew. Files that have not changed are not touched.
    """
    target, info = ROOT / "build" / "tvm_ffi", _tvm_ffi_info()
    for include in map(Path, (info.find_include_path(), info.find_dlpack_include_path())):
        for source in include.rglob("*.h"):
            _copy_changed(source, target / "include" / source.relative_to(include))
    _copy_changed(Path(info.find_libtvm_ffi()), target / "lib" / "libtvm_ffi.so")
    return target


def _tvm_ffi_info() -> ModuleType:
    """The module of tvm_ffi that knows where its files are; the package itself would import torch."""
    package = importlib.util.find_spec("tvm_ffi")
    if package is None or package.origin is None:
        raise SystemExit("error: tvm_ffi not found; install it with `pip install apache-tvm-ffi`.")
    spec = importlib.util.spec_from_file_location(
        "_tvm_ffi_info", Path(package.origin).with_name("libinfo.py")
    )
    assert spec is not None
    assert spec.loader is not None
    info = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(info)
    return info


def _copy_changed(source: Path, target: Path) -> None:
    content = source.read_bytes()
    if not target.is_file() or target.read_bytes() != content:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


class CMakeBuild(build_ext):
    """Runs CMake for each library; the build folder is kept, so a rebuild compiles what changed."""

    def get_ext_filename(self, fullname: str) -> str:
        """Plain shared-library name: the library does not depend on the Python version."""
        return fullname.replace(".", os.sep) + ".so"

    def copy_extensions_to_source(self) -> None:
        """Place the libraries in the source tree, for an editable install."""
        for ext in self.extensions:
            (ROOT / "src" / self.get_ext_filename(ext.name)).parent.mkdir(exist_ok=True)
        super().copy_extensions_to_source()

    def build_extensions(self) -> None:
        """Configure once and build all libraries, so that no processor waits for the end of one of them."""
        require_compiler()
        cmake = find_tool("cmake", "CMAKE_BIN_DIR")
        if cmake is None:
            raise SystemExit("error: cmake not found; install it with `pip install cmake`.")
        ninja = find_tool("ninja", "BIN_DIR")
        self.build_dir = ROOT / "build" / ("ninja" if ninja else "make")
        configure = [
            cmake,
            f"-S{ROOT}",
            f"-B{self.build_dir}",
            f"-DSPLITSERVE_TVM_FFI={tvm_ffi_copy()}",
            f"-DSPLITSERVE_NVCC={find_nvcc()}",
            f"-DSPLITSERVE_NATIVE={'ON' if is_native() else 'OFF'}",
        ]
        if ninja:
            # Given anew each time: with build isolation the path of the last build is gone.
            configure += ["-GNinja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        configure += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        targets = [_library(ext).removeprefix("lib") for ext in self.extensions]
        build = [cmake, "--build", str(self.build_dir), "--target", *targets]
        if self.parallel or "CMAKE_BUILD_PARALLEL_LEVEL" not in os.environ:
            build += ["--parallel", str(self.parallel or os.cpu_count() or 1)]
        subprocess.run(configure, check=True)
        subprocess.run(build, check=True)
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        """Copy a library to where setuptools wants it."""
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        # A running process may have the old library mapped: replace the file, do not write into it.
        partial = target.with_suffix(".tmp")
        shutil.copy2(self.build_dir / "lib" / f"{_library(ext)}.so", partial)
        partial.replace(target)


def _library(ext: Extension) -> str:
    """Name of the library's file, without its suffix."""
    return str(ext.name.rpartition(".")[2])


class PlatformWheel(bdist_wheel):
    """Tags the wheel for the platform but for every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """Wheel tag, for example ("py3", "none", "linux_x86_64")."""
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=native_libraries(),
    cmdclass={"build_ext": CMakeBuild, "bdist_wheel": PlatformWheel},
)
