"""linear where rows are multiplied as floats in place of pairs of bfloat16: with the bits of pairs."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import GroupCodes, GroupForm, KeptForm
from tests.worker.ops.helpers import assert_same_bits

# Weights that are no integers; groups that a stretch of inputs ends in, too.
FP8, FP8_OF_32 = GroupForm(8, 128, False, is_float=True), GroupForm(8, 32, False, is_float=True)
FORMS: list[KeptForm] = ["plain", FP8, FP8_OF_32, GroupForm(8, 16, False, is_float=True)]
# Those of tiles of every height, of several tiles, and of weights that are decoded first.
ROWS = (*range(1, 17), 25, 61)
COUNTS = (0, 1, 2, 5, 0, 3, 14, 8)
STARTS = torch.tensor([0, *torch.tensor(COUNTS).cumsum(0).tolist()], dtype=torch.int32)


@pytest.fixture(autouse=True)
def _where_floats_are_multiplied(isa: str) -> None:
    if isa != "avx512_bf16" or not ops.multiplies_floats():
        pytest.skip("for processors that multiply floats faster")


def both_ways(run: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """What a call returns where pairs of bfloat16 are multiplied, and floats in their place."""
    ops.set_multiplies_floats(False)
    try:
        pairs = run()
    finally:
        ops.set_multiplies_floats(True)
    return pairs, run()


def product(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    out = torch.empty(x.shape[0], weight.shape[0])
    ops.linear(out, x, weight, bias)
    return out


def scaled(rows: int, columns: int, exponent: int) -> Tensor:
    return (torch.randn(rows, columns).double() * 2.0**exponent).bfloat16()


def packed(rows: int, depth: int, form: KeptForm, exponent: int = 0) -> PackedWeight:
    """A random matrix in a form."""
    if not isinstance(form, GroupForm):
        return PackedWeight.of(scaled(rows, depth, exponent), form)
    weight = PackedWeight((rows, depth), torch.bfloat16, form)
    weight.fill_group_codes(random_fp8(rows, depth, form, exponent))
    return weight


def random_fp8(rows: int, depth: int, form: GroupForm, exponent: int = 0) -> GroupCodes:
    codes = torch.randint(0, 127, (rows, depth)) | torch.randint(0, 2, (rows, depth)) << 7
    scales = torch.rand(rows, -(-depth // form.group)) * 2.0**exponent
    return GroupCodes(codes.to(torch.uint8), scales, None)


def packed_experts(rows: int, depth: int, form: KeptForm) -> PackedWeight:
    if not isinstance(form, GroupForm):
        return PackedWeight.of_experts([scaled(rows, depth, -2) for _ in COUNTS], form)
    weight = PackedWeight((rows * len(COUNTS), depth), torch.bfloat16, form, len(COUNTS))
    for expert in range(len(COUNTS)):
        weight.fill_group_codes(random_fp8(rows, depth, form), rows * expert)
    return weight


# Products of the second exponents are denormal, and so are some of their sums; the third ones are themselves.
@pytest.mark.parametrize("exponent", [0, -66, -130])
@pytest.mark.parametrize("depth", [1, 33, 161, 320])
@pytest.mark.parametrize("form", FORMS)
def test_any_number_of_rows_has_the_bits_of_pairs(depth: int, exponent: int, form: KeptForm) -> None:
    weight = packed(72, depth, form, exponent)
    x = scaled(max(ROWS), depth, exponent)
    lone = torch.cat([product(x[row : row + 1], weight) for row in range(len(x))])
    for rows in ROWS:
        pairs, floats = both_ways(partial(product, x[:rows], weight))
        assert_same_bits(floats, pairs)
        assert_same_bits(floats, lone[:rows])


@pytest.mark.parametrize("form", ["plain", FP8, FP8_OF_32])
def test_infinity_and_what_is_not_a_number_spread_as_in_pairs(form: KeptForm) -> None:
    """Which of several NaN a sum becomes is not defined; all else has the same bits."""
    weight = packed(96, 50, form)
    x = scaled(16, 50, 0)
    for row, (column, value) in enumerate([(0, "inf"), (49, "-inf"), (7, "nan"), (8, "3e38"), (9, "-3e38")]):
        x[2 * row, column] = float(value)
    x[12, 3:5] = torch.tensor([torch.inf, -torch.inf])
    if form == "plain":
        matrix = scaled(96, 50, 0)
        matrix[3, 4], matrix[40, 11], matrix[95, 49] = torch.inf, torch.nan, 3e38
        weight = PackedWeight.of(matrix)
    for rows in range(1, 17):
        pairs, floats = both_ways(partial(product, x[:rows], weight))
        assert torch.equal(pairs.isnan(), floats.isnan())
        assert_same_bits(floats.where(~floats.isnan(), 1), pairs.where(~pairs.isnan(), 1))
        assert floats[1::2, 4:40].isfinite().all()


@pytest.mark.parametrize("form", ["plain", FP8])
def test_outputs_are_finished_as_those_of_pairs(form: KeptForm) -> None:
    """With a bias, rounded or not, where they go past the caches, and of rows that lie apart."""
    weight, bias = packed(4_128, 70, form), torch.randn(4_128).bfloat16()
    x = scaled(300, 90, 0)[:, 10:80]
    for rows, dtype in (
        (5, torch.bfloat16),
        (29, torch.float32),
        (130, torch.float32),
        (300, torch.bfloat16),
    ):

        def run(rows: int = rows, dtype: torch.dtype = dtype) -> Tensor:
            out = torch.empty(rows, 4_128, dtype=dtype)
            ops.linear(out, x[:rows], weight, bias)
            return out

        pairs, floats = both_ways(run)
        assert_same_bits(floats, pairs)


@pytest.mark.parametrize("form", ["plain", FP8])
def test_gates_and_experts_have_the_bits_of_pairs(form: KeptForm) -> None:
    weight = packed_experts(128, 86, form)
    x = scaled(sum(COUNTS), 86, 0)

    def units() -> Tensor:
        out = torch.empty(len(x), 64, dtype=torch.bfloat16)
        ops.activated.gated(out, x, weight, "silu", starts=STARTS)
        return out

    def products() -> Tensor:
        out = torch.empty(len(x), 128)
        ops.experts.linear(out, x, weight, STARTS)
        return out

    for threads in (1, 2):
        ops.set_num_threads(threads)
        for run in (units, products):
            pairs, floats = both_ways(run)
            assert_same_bits(floats, pairs)


def test_heads_have_the_bits_of_pairs() -> None:
    """Of weights that are denormal: what else differed would be lost where outputs are rounded."""
    weight = PackedWeight.of_experts([scaled(40, 48, -130) for _ in range(6)])
    for tokens in (1, 3, 12, 14):
        x = scaled(tokens * 6, 48, 60).view(tokens, 6, 48)

        def run(x: Tensor = x) -> Tensor:
            out = torch.empty(len(x), 6, 40, dtype=torch.bfloat16)
            ops.latents.multiply_heads(out, x, weight)
            return out

        pairs, floats = both_ways(run)
        assert_same_bits(floats, pairs)


def test_denormals_are_as_before_after_a_product() -> None:
    product(scaled(4, 64, 0), packed(32, 64, "plain"))
    product(scaled(4, 64, 0), packed(32, 64, "int4"))
    assert (torch.full((100,), 1e-40) * 0.5).min() > 0
