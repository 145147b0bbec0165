"""Compiles the CUDA library for the CPU: the same sources, with the headers of this folder for CUDA's."""

from __future__ import annotations

import fcntl
import re
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tvm_ffi import libinfo

ROOT = Path(__file__).resolve().parents[3]
CSRC = ROOT / "csrc"
HERE = Path(__file__).parent
# No contraction, as in the CUDA build. An access that is not aligned ends the process, as it ends a kernel.
FLAGS = (
    "-std=c++20 -O2 -fPIC -fvisibility=hidden -ffp-contract=off -DSPLITSERVE_EMULATED"
    " -fsanitize=alignment -fsanitize-undefined-trap-on-error"
)
# Of the stack the address sanitizer knows too little: every emulated thread has its own.
SANITIZERS = {
    "": "",
    "thread": "-g -fsanitize=thread -DEMULATED_RACES",
    "address": "-g -fsanitize=address --param=asan-stack=0",
}
# The pragmas are the CUDA compiler's.
WARNINGS = "-Wall -Wextra -Werror -Wno-unknown-pragmas"
INCLUDES = [HERE, CSRC, CSRC / "cuda"]
FOREIGN_INCLUDES = [libinfo.find_include_path(), libinfo.find_dlpack_include_path()]
JOBS = 2


def sources() -> list[Path]:
    """What csrc/cuda/CMakeLists.txt compiles, and this folder."""
    named = re.findall(r"[\w/]+\.(?:cu|cpp)\b", (CSRC / "cuda" / "CMakeLists.txt").read_text())
    cuda = [CSRC / "cuda" / name for name in named]
    return [*(CSRC / "bindings").glob("*.cpp"), *cuda, HERE / "fibers.cpp", HERE / "host_device.cpp"]


def is_current(obj: Path, dependencies: Path) -> bool:
    """Whether an object is newer than all its sources, which the compiler has listed in a make rule."""
    if not obj.is_file() or not dependencies.is_file():
        return False
    files = [Path(name) for name in shlex.split(dependencies.read_text().replace("\\\n", " "))[1:]]
    built = obj.stat().st_mtime
    return all(path.is_file() and path.stat().st_mtime < built for path in [Path(__file__), *files])


def compile_source(source: Path, folder: Path, sanitizer: str) -> Path:
    obj = folder / f"{source.name}.o"
    dependencies = obj.with_suffix(".d")
    if is_current(obj, dependencies):
        return obj
    options = [*FLAGS.split(), *WARNINGS.split(), *(f"-I{path}" for path in INCLUDES)]
    options += [f"-isystem{path}" for path in FOREIGN_INCLUDES]
    options += SANITIZERS[sanitizer].split()
    # Of the rest the threads of a GPU run nothing.
    if source.suffix != ".cu":
        options.append("-fno-sanitize=thread,address")
    tracked = ["-MMD", "-MF", str(dependencies)]
    partial = obj.with_suffix(".tmp")
    run([compiler(), *options, *tracked, "-x", "c++", "-c", str(source), "-o", str(partial)])
    # A compiler that is killed midway leaves nothing that looks current.
    partial.replace(obj)
    return obj


def compiler() -> str:
    found = shutil.which("g++") or shutil.which("c++")
    assert found, "the kernels of the CPU needed a compiler, too"
    return found


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stderr}"


def build(sanitizer: str = "") -> Path:
    """Return the library, compiled anew as far as sources have changed. Test processes take turns.

    Args:
        sanitizer: a key of SANITIZERS. Its runtime has to be in the process already, see sanitized.py.
    """
    folder = ROOT / "build" / "-".join(filter(None, ["emulated", sanitizer]))
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libsplitserve_emulated.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with ThreadPoolExecutor(JOBS) as pool:
            objects = list(pool.map(lambda source: compile_source(source, folder, sanitizer), sources()))
        if not library.is_file() or any(obj.stat().st_mtime > library.stat().st_mtime for obj in objects):
            partial = library.with_suffix(".tmp")
            names = [str(obj) for obj in objects]
            link = [compiler(), "-shared", *SANITIZERS[sanitizer].split()]
            run([*link, *names, str(libinfo.find_libtvm_ffi()), "-o", str(partial)])
            # A running process may have the old one mapped.
            partial.replace(library)
    return library


def compile_program(source: Path, folder: Path, sanitizer: str) -> Path:
    """Return a program of one source with emulated kernels and a main()."""
    objects = [compile_source(path, folder, sanitizer) for path in (source, HERE / "fibers.cpp")]
    program = folder / source.stem
    run([compiler(), *SANITIZERS[sanitizer].split(), *map(str, objects), "-o", str(program)])
    return program


if __name__ == "__main__":
    print(build())
