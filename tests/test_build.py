"""What the build decides before it compiles: with CUDA or without, and what counts as changed."""

from __future__ import annotations

import os
import runpy
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

setuptools = pytest.importorskip("setuptools")
SETUP = Path(__file__).resolve().parent.parent / "setup.py"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run setup.py up to its call of setup(); returns the libraries it would build, with a GPU or without."""
    for name in ("SPLITSERVE_CUDA", "CUDACXX", "CMAKE_ARGS"):
        monkeypatch.delenv(name, raising=False)
    passed: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", passed.update)
    glob = Path.glob

    def run(*, gpu: bool = False, nvcc: str = "", **variables: str) -> set[str]:
        monkeypatch.setattr(Path, "glob", lambda path, how: [path] * gpu if path == DEV else glob(path, how))
        monkeypatch.setenv("PATH", str(tmp_path))
        if nvcc:
            variables["CUDACXX"] = fake_nvcc(tmp_path, nvcc)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        runpy.run_path(str(SETUP))
        return {extension.name.rpartition("_")[2] for extension in passed["ext_modules"]}

    return run


DEV = Path("/dev")


def fake_nvcc(folder: Path, release: str) -> str:
    path = folder / "nvcc"
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_without_a_gpu_cuda_is_left_out_and_the_output_tells_how_to_have_it(
    load: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load(nvcc="13.0") == {"frontend", "cpu"}
    assert "SPLITSERVE_CUDA=1" in capsys.readouterr().out


def test_with_a_gpu_cuda_is_built(load: Any) -> None:
    assert load(gpu=True, nvcc="13.0") == {"frontend", "cpu", "cuda"}


def test_it_is_built_without_a_gpu_where_it_is_asked_for(load: Any) -> None:
    assert load(nvcc="12.4", SPLITSERVE_CUDA="1") == {"frontend", "cpu", "cuda"}


def test_it_can_be_refused_on_a_gpu(load: Any) -> None:
    assert load(gpu=True, nvcc="13.0", SPLITSERVE_CUDA="0") == {"frontend", "cpu"}


def test_an_old_compiler_is_named_and_does_without(load: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert load(gpu=True, nvcc="12.3") == {"frontend", "cpu"}
    assert "is not CUDA 12.4 or newer" in capsys.readouterr().err


@pytest.mark.parametrize("variables", [{"nvcc": "11.8"}, {"CUDACXX": "/no/such/nvcc"}])
def test_what_was_asked_for_and_cannot_be_is_an_error(load: Any, variables: dict[str, str]) -> None:
    with pytest.raises(SystemExit, match="SPLITSERVE_CUDA=1, but"):
        load(SPLITSERVE_CUDA="1", **variables)


def test_another_value_is_an_error(load: Any) -> None:
    with pytest.raises(SystemExit, match="SPLITSERVE_CUDA must be 0 or 1, got 'yes'"):
        load(SPLITSERVE_CUDA="yes")


def test_kernels_of_other_processors_are_left_out_where_that_is_asked_for(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    is_native = runpy.run_path(str(SETUP))["is_native"]
    for value, expected in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("SPLITSERVE_NATIVE", value)
        assert is_native() is expected
    monkeypatch.setenv("SPLITSERVE_NATIVE", "yes")
    with pytest.raises(SystemExit, match="SPLITSERVE_NATIVE must be 0 or 1, got 'yes'"):
        is_native()


def test_a_header_that_has_not_changed_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    copy = runpy.run_path(str(SETUP))["_copy_changed"]
    source, target = tmp_path / "a.h", tmp_path / "include" / "a.h"
    source.write_text("int a;")
    copy(source, target)
    os.utime(target, (1, 1))
    copy(source, target)
    assert target.stat().st_mtime == 1
    source.write_text("int b;")
    copy(source, target)
    assert target.read_text() == "int b;"
    assert target.stat().st_mtime > 1


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_what_was_cleaned_is_built_again(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "setup.py", "CMakeLists.txt"):
        shutil.copy(SETUP.with_name(name), tmp_path)
    (tmp_path / ".venv").mkdir()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "SPLITSERVE"))
    }

    def make(*words: str) -> str:
        done = subprocess.run(
            ("make", *words), cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    for name in (".created", ".installed", ".installed-test"):
        (tmp_path / ".venv" / name).touch()
    assert "kernels" not in make("--dry-run", "test")
    make("clean")
    assert "kernels" in make("--dry-run", "test")
    assert "kernels" in make("--dry-run", "serve")
