"""What the kernel tests share: the error criterion and bit comparison."""

import torch
from torch import Tensor


def rms_error(value: Tensor, exact: Tensor) -> float:
    return (value.double() - exact).square().mean().sqrt().item()


def max_error(value: Tensor, exact: Tensor) -> float:
    return (value.double() - exact).abs().max().item()


def assert_as_exact_as_torch(ours: Tensor, torchs: Tensor, exact: Tensor) -> None:
    """Our error against the float64 result is at most twice that of plain torch in the same dtype.

    The root mean square is compared strictly. The largest single error of a few hundred elements is a matter
    of luck in both, and torch's differs between processors, so it may be four times torch's or some
    roundings in float32, in which both sum; it is there to catch one wrong element.
    """
    largest = exact.abs().max().item()
    # Where torch happens to be exact, one rounding of a result of this size is still allowed.
    one_rounding = largest * torch.finfo(ours.dtype).eps
    sum_roundings = 16 * largest * torch.finfo(torch.float32).eps
    for error_of, factor, luck in (
        (rms_error, 2, one_rounding),
        (max_error, 4, max(one_rounding, sum_roundings)),
    ):
        error, allowed = error_of(ours, exact), max(factor * error_of(torchs, exact), luck)
        assert error <= allowed, f"{error_of.__name__} {error:.3g}, allowed {allowed:.3g}"


def assert_same_bits(a: Tensor, b: Tensor) -> None:
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    kind = torch.int16 if a.element_size() == 2 else torch.int32
    assert torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def sum_in_order(parts: list[Tensor], bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """By torch, in float32, rounded once; the bias [N] is added to each row [.., N]."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return (total if bias is None else total + bias.float()).to(dtype)
