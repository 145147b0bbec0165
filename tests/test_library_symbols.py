"""Do the libraries that wheels carry load where glibc is 2.28 and libstdc++ that of GCC 8?"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = [ROOT / "worker/_lib/libsplitserve_cpu.so", ROOT / "frontend/_lib/libsplitserve_frontend.so"]
# The newest versions of symbols in manylinux_2_28.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
# A newer compiler's headers may call more; csrc/common/older_runtime.cpp has what this one's do.
WHEEL_COMPILER = 12


def readelf(*words: str) -> str:
    return subprocess.run(["readelf", *words], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf")
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.stem)
def test_a_library_asks_for_no_symbol_that_is_too_new(library: Path) -> None:
    compilers = re.findall(r"GCC: \(.*\) (\d+)\.", readelf("--string-dump=.comment", str(library)))
    if max(map(int, compilers), default=99) > WHEEL_COMPILER:
        pytest.skip(f"wheels are built with GCC {WHEEL_COMPILER}")
    asked = {
        (name, tuple(map(int, version.split("."))))
        for name, version in re.findall(
            r"Name: (GLIBC|GLIBCXX|CXXABI)_([\d.]+)", readelf("--version-info", str(library))
        )
    }
    assert ("GLIBCXX", (3, 4)) in asked or ("CXXABI", (1, 3)) in asked
    assert {(name, version) for name, version in asked if version > NEWEST[name]} == set()
