"""The CUDA library where there is no GPU: it was built well, it loads, and it says what is wrong."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import tvm_ffi

from splitserve.worker._native import load_library
from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.cuda import cuda_ops
from tests.gpu.emulated.build import sources

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "build" / "ninja" / "ptxas"
# Norms of rows that lie anywhere are there for odd sizes; their flag is false. Everything else is hot.
COLD = re.compile(r"norm_rows.*Lb0E")
# As dlpack.h has it.
_DL_CUDA = 2
needs_library = pytest.mark.skipif(
    not (ROOT / "worker" / "_lib" / "libsplitserve_cuda.so").is_file(),
    reason="built without the CUDA library: SPLITSERVE_CUDA=1 asks for it",
)


def resources() -> dict[tuple[str, str], dict[str, int]]:
    """What ptxas says of each (kernel, architecture)."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for report in sorted(REPORTS.glob("*.txt")):
        for block in report.read_text().split("Compiling entry function ")[1:]:
            name, architecture = re.findall(r"'([^']+)'", block)[:2]
            numbers = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", block)
            registers = re.search(r"Used (\d+) registers", block)
            assert numbers, block
            assert registers, block
            found[name, architecture] = {
                "spilled": int(numbers[1]) + int(numbers[2]),
                "registers": int(registers[1]),
            }
    return found


@needs_library
@pytest.mark.skipif(not REPORTS.is_dir(), reason="the library was built elsewhere")
def test_no_hot_kernel_spills_registers() -> None:
    found = resources()
    kernels = {path.stem for path in sources() if path.suffix == ".cu"}
    assert kernels <= {path.stem for path in REPORTS.glob("*.txt")}
    names = {name for name, _ in found}
    for kernel in (
        "norm_rows",
        "activate",
        "turn_and_write",
        "attention_kernel",
        "whole_kernel",
        "latent_kernel",
        "edit_kernel",
        "sample_kernel",
        "add_parts",
        "multiply_split",
        "multiply_wide",
        "write_out",
    ):
        assert any(kernel in name for name in names), kernel
    assert {key: use for key, use in found.items() if use["spilled"] and not COLD.search(key[0])} == {}


@needs_library
@pytest.mark.skipif(not REPORTS.is_dir(), reason="the library was built elsewhere")
def test_every_kernel_is_compiled_for_both_architectures() -> None:
    found = resources()
    for name, _ in found:
        compiled = {architecture for other, architecture in found if other == name}
        assert {a.removesuffix("a") for a in compiled} in ({"sm_80", "sm_90"}, {"sm_90"}), name
    assert {architecture.removesuffix("a") for _, architecture in found} == {"sm_80", "sm_90"}


@needs_library
def test_the_library_loads_without_a_gpu_and_refuses_cpu_tensors() -> None:
    gpu_ops = cuda_ops()
    assert gpu_ops.device_count() == torch.cuda.device_count()
    x = torch.zeros(2, 4)
    with pytest.raises(ValueError, match="x: expected a tensor on a CUDA device, this one is on the CPU"):
        gpu_ops.rms_norm(x, x, torch.ones(4), 1e-6)


def test_without_the_library_the_error_names_nvcc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("splitserve.worker._native.__file__", str(tmp_path / "_native.py"))
    cuda_ops.cache_clear()
    with pytest.raises(ImportError, match=r"libsplitserve_cuda\.so is missing.*nvcc.*SPLITSERVE_CUDA=1"):
        cuda_ops()


def test_the_library_of_the_wheel_of_its_own_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "splitserve_cuda" / "libsplitserve_cuda.so"
    library.parent.mkdir()
    library.touch()
    (library.parent / "__init__.py").touch()
    loaded: list[str] = []
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("splitserve.worker._native.__file__", str(tmp_path / "_native.py"))
    monkeypatch.setattr(tvm_ffi, "load_module", loaded.append)
    load_library("splitserve_cuda")
    assert loaded == [str(library)]


class OnAGpu:
    """A tensor of the CPU that says it lies on the first GPU, by the device of its DLTensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DL_CUDA, 0

    def __dlpack__(self, **options: object) -> object:
        capsule = self._tensor.__dlpack__()
        pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
        pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        # Behind the pointer to its data.
        device = pointer_of(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)
        ctypes.c_int32.from_address(device).value = _DL_CUDA
        return capsule


def test_the_cpu_library_refuses_tensors_of_other_devices() -> None:
    out, weight = torch.zeros(2, 4), torch.ones(4)
    x = tvm_ffi.from_dlpack(OnAGpu(torch.zeros(2, 4)))
    with pytest.raises(ValueError, match="x: expected a tensor on the CPU, this one is on a CUDA device"):
        ops.rms_norm(out, x, weight, 1e-6)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_the_build_finds_the_compiler_that_is_there() -> None:
    told = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False).stdout
    release = re.search(r"release (\d+)\.(\d+)", told)
    if release is None or (int(release[1]), int(release[2])) < (12, 4):
        pytest.skip("no nvcc that can build the library")
    assert (ROOT / "worker" / "_lib" / "libsplitserve_cuda.so").is_file()
