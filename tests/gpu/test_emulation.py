"""The emulation finds what a GPU would answer with wrong numbers now and then, or with a fault."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.gpu.emulated.build import HERE, compile_program
from tests.gpu.emulated.sanitized import where_it_always_lies

pytestmark = pytest.mark.slow

KERNELS = HERE / "faults.cu"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(KERNELS, tmp_path_factory.mktemp("plain"), "")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the race detector."""
    return compile_program(KERNELS, tmp_path_factory.mktemp("watched"), "thread")


def run(program: Path, kernel: str) -> subprocess.CompletedProcess[str]:
    command = [*where_it_always_lies(), str(program), kernel]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("this system lays out memory in a way that the race detector cannot take")
    return done


@pytest.mark.parametrize("kernel", ["pass_on", "pass_on_in_warp", "fill_late"])
def test_a_kernel_with_its_barriers_runs_without_a_report(watched: Path, kernel: str) -> None:
    done = run(watched, kernel)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "kernel", ["pass_on_without_barrier", "pass_on_in_warp_without_barrier", "fill_early"]
)
def test_a_missing_barrier_is_a_race(watched: Path, kernel: str) -> None:
    done = run(watched, kernel)
    assert done.returncode != 0
    assert "WARNING: ThreadSanitizer: data race" in done.stderr
    assert "faults.cu" in done.stderr


def test_a_copy_that_comes_too_early_leaves_no_numbers(plain: Path) -> None:
    assert run(plain, "fill_late").returncode == 0
    assert run(plain, "fill_early").returncode == 2


@pytest.mark.parametrize("kernel", ["load_unaligned", "copy_unaligned"])
def test_an_unaligned_access_ends_the_process(plain: Path, kernel: str) -> None:
    assert run(plain, kernel).returncode < 0
