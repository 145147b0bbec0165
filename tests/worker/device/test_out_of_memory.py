"""torch's own words for a lack of memory are known."""

from __future__ import annotations

import pytest
import torch

from splitserve.worker.device.out_of_memory import is_out_of_memory


def test_a_tensor_that_no_memory_holds() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in the manual",
        "sample: out of memory (cudaErrorMemoryAllocation)",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_what_the_driver_has_no_memory_for(words: str) -> None:
    assert is_out_of_memory(RuntimeError(words))


def test_other_errors_are_no_lack_of_memory() -> None:
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
