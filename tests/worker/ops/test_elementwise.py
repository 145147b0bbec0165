"""elementwise: the bits of torch for tensors of any layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.decode import Recording
from tests.worker.ops.helpers import assert_same_bits

Kind = Literal["add", "sub", "mul"]
# Two tensors that give one of (2, 3, 5, 34): transposed, repeated, cut, with other strides than 1.
LAYOUTS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "dense": lambda x: (x, x.flip(-1)),
    "transposed": lambda x: (x.transpose(1, 2).contiguous().transpose(1, 2), x),
    "repeated": lambda x: (x, x[:1, :1, :, :]),
    "a-number-per-row": lambda x: (x, x[..., :1]),
    "fewer-dimensions": lambda x: (x, x[0, 0]),
    "every-other": lambda x: (torch.cat((x, x), -1)[..., ::2], x),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["add", "sub", "mul"])
def test_sums_and_products_have_the_bits_of_torch(kind: Kind, layout: str, dtype: torch.dtype) -> None:
    x, y = LAYOUTS[layout](torch.randn(2, 3, 5, 34).to(dtype))
    expected = {"add": x + y, "sub": x - y, "mul": x * y}[kind]
    for out in (torch.empty(2, 3, 5, 34, dtype=dtype), torch.empty(3, 2, 5, 70, dtype=dtype)):
        target = out if out.shape[-1] == 34 else out.transpose(0, 1)[..., 2:70:2]
        ops.elementwise(kind, target, x, y)
        assert_same_bits(target, expected)


@pytest.mark.parametrize("to", [torch.float32, torch.bfloat16])
def test_copies_and_signs_have_the_bits_of_torch(dtype: torch.dtype, to: torch.dtype) -> None:
    x = torch.randn(4, 3, 21).to(dtype).transpose(0, 1)
    out = torch.empty(3, 4, 21, dtype=to)
    ops.elementwise("copy", out, x)
    assert_same_bits(out, x.to(to).contiguous())
    ops.elementwise("neg", out, x)
    assert_same_bits(out, (-x).to(to).contiguous())
    single = torch.empty((), dtype=to)
    ops.elementwise("copy", single, x[0, 0, 0])
    assert single == x[0, 0, 0].to(to)


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("width", [257, 514])
def test_many_elements_do_not_depend_on_the_number_of_threads(
    dtype: torch.dtype, width: int, repeated: bool
) -> None:
    """Long rows, which are cut, and those of a part of a tensor."""
    x, y = torch.randn(300, width).to(dtype), torch.randn(300, width).to(dtype)
    x, y = x[:, :257], y[0, :257] if repeated else y[:, :257]
    out = torch.empty(300, 257, dtype=dtype)
    for threads in (1, 2, 7):
        ops.set_num_threads(threads)
        ops.elementwise("mul", out, x, y)
        assert_same_bits(out, x * y)


def test_wrong_arguments_are_refused_by_name() -> None:
    x, y = torch.zeros(2, 3), torch.zeros(2, 2)
    with pytest.raises(ValueError, match="y: expected size 3 or 1, got 2"):
        ops.elementwise("add", torch.empty(2, 3), x, y)
    with pytest.raises(ValueError, match="y: belongs to sums and products"):
        ops.elementwise("add", torch.empty(2, 3), x)
    with pytest.raises(ValueError, match="kind: expected copy"):
        ops.elementwise("div", torch.empty(2, 3), x, x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most 5 dimensions"):
        ops.elementwise("copy", torch.empty(1, 1, 1, 1, 1, 1), x)
    with pytest.raises(TypeError, match="y: dtype differs"):
        ops.elementwise("add", torch.empty(2, 3), x, x.bfloat16())


def test_what_python_does_in_a_recording_is_done_again_in_its_place() -> None:
    x, y = torch.tensor([2.0]), torch.zeros(1)

    def tenfold() -> None:
        y.mul_(10.0)

    with Recording() as recording:
        ops.elementwise("add", y, x, x)
        recording.call(tenfold)
        ops.elementwise("add", y, y, x)
        with recording.paused():
            ops.elementwise("add", y, y, y)
    assert Recording.current() is None
    y.zero_()
    recording.replay()
    assert y.item() == 42.0
