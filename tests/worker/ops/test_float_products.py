"""linear where many rows are multiplied as floats in place of pairs of bfloat16: with the bits of pairs."""

from typing import get_args

import pytest
import torch

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import GroupCodes, GroupForm, KeptForm, WeightForm
from tests.worker.ops.helpers import assert_same_bits


def with_many_rows(x: torch.Tensor, weight: PackedWeight, is_float: bool) -> torch.Tensor:
    """The product by kernels that multiply pairs of bfloat16, or floats in their place."""
    out = torch.empty(x.shape[0], weight.shape[0])
    ops.set_multiplies_floats(is_float)
    try:
        ops.linear(out, x, weight)
    finally:
        ops.set_multiplies_floats(True)
    return out


# Products of the second exponents are denormal, and so are some of their sums; the third ones are themselves.
@pytest.mark.parametrize("exponent", [0, -66, -130])
@pytest.mark.parametrize("depth", [161, 320])
@pytest.mark.parametrize("form", [*get_args(WeightForm), GroupForm(8, 16, False), GroupForm(4, 32, True)])
def test_floats_have_the_bits_of_pairs_where_they_stand_for_them(
    depth: int, exponent: int, form: KeptForm, isa: str
) -> None:
    if isa != "avx512_bf16" or not ops.multiplies_floats():
        pytest.skip("for processors that multiply floats faster")
    matrix = (torch.randn(72, depth).double() * 2.0**exponent).bfloat16()
    x = (torch.randn(61, depth).double() * 2.0**exponent).bfloat16()
    if isinstance(form, GroupForm):
        weight = PackedWeight((72, depth), torch.bfloat16, form)
        codes = torch.randint(0, 16, (72, depth)).to(torch.int8)
        scales = torch.rand(72, -(-depth // form.group)) * 2.0**exponent
        weight.fill_group_codes(GroupCodes(codes, scales, -8 * scales if form.has_offsets else None))
    else:
        weight = PackedWeight.of(matrix, form)
    pairs = with_many_rows(x, weight, False)
    assert_same_bits(with_many_rows(x, weight, True), pairs)
    assert_same_bits(with_many_rows(x[9:10], weight, True), pairs[9:10])


def test_refuses_floats_where_pairs_are_as_fast() -> None:
    if ops.multiplies_floats():
        pytest.skip("for other processors")
    with pytest.raises(ValueError, match="is_used: this processor multiplies bfloat16 as fast"):
        ops.set_multiplies_floats(True)
