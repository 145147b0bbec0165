"""linear on codes where activations become integers: of 16 bits, "words", or of 8 bits."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import GroupCodes, GroupForm, KeptForm, ScaleUnits
from tests.worker.ops.helpers import assert_same_bits
from tests.worker.ops.quantized import WORD_ISAS, draw_group_codes, multiplied

FORMS: list[KeptForm] = [
    "int8",
    "int4",
    "mxfp4",
    GroupForm(4, 16, True),
    GroupForm(4, 32, True),
    GroupForm(4, 128, False),
    GroupForm(6, 16, False),
    GroupForm(6, 32, True),
    GroupForm(6, 128, True),
    GroupForm(8, 16, False),
    GroupForm(8, 32, True),
    GroupForm(8, 64, False),
    GroupForm(4, 16, False, has_units=True),
    GroupForm(4, 32, True, has_units=True),
    GroupForm(6, 16, False, has_units=True),
    GroupForm(6, 16, True, has_units=True),
    GroupForm(6, 32, True, has_units=True),
    GroupForm(6, 128, True, has_units=True),
]

# The same with integers of 8 bits.
BYTE_FORMS: list[KeptForm] = [
    GroupForm(4, 16, True, takes_int8=True),
    GroupForm(4, 128, False, takes_int8=True),
    GroupForm(4, 32, True, takes_int8=True),
]


def _of(forms: list[KeptForm]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "form", forms, ids=lambda form: form if isinstance(form, str) else "-".join(map(str, form))
    )


of_forms, of_words = _of(FORMS + BYTE_FORMS), _of(FORMS)


@pytest.fixture(autouse=True)
def _where_words_are_multiplied(isa: str) -> None:
    if isa not in WORD_ISAS:
        pytest.skip("for instruction sets that multiply words")


@pytest.fixture
def without_vnni() -> Iterator[None]:
    ops.set_uses_vnni(False)
    yield
    ops.set_uses_vnni(True)


def packed(rows: int, depth: int, form: KeptForm) -> PackedWeight:
    if not isinstance(form, GroupForm):
        return PackedWeight.of(torch.randn(rows, depth).bfloat16(), form)
    weight = PackedWeight((rows, depth), torch.bfloat16, form)
    weight.fill_group_codes(draw_group_codes(rows, depth, form))
    return weight


def product(x: Tensor, weight: PackedWeight) -> Tensor:
    out = torch.empty(x.shape[0], weight.shape[0])
    ops.linear(out, x, weight)
    return out


def of_many_magnitudes(rows: int, depth: int) -> Tensor:
    """Activations of which few are near the largest ones of their block."""
    return (torch.randn(rows, depth) * torch.exp2(torch.randint(-20, 3, (rows, depth)))).bfloat16()


@of_words
@pytest.mark.parametrize("depth", [27, 70, 301, 545])
@pytest.mark.parametrize("rows", [1, 5, 14, 61])
def test_bits_are_those_of_activations_that_were_rounded_before(
    rows: int, depth: int, form: KeptForm, isa: str
) -> None:
    x, weight = of_many_magnitudes(rows, depth), packed(72, depth, form)
    rounded = multiplied(x, form, isa)
    assert (rounded != x.double()).any(), "some are rounded"
    # What is rounded has no more digits than before.
    assert torch.equal(rounded.bfloat16().double(), rounded)
    assert_same_bits(product(x, weight), product(rounded.bfloat16(), weight))


@of_forms
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 13, 50])
@pytest.mark.parametrize("depth", [5, 33, 128, 299])
def test_all_ways_to_multiply_give_the_same_bits(
    depth: int, rows: int, form: KeptForm, isa: str, without_vnni: None
) -> None:
    """Integers are exact, and what becomes of their sums is done in the same order."""
    x, weight = of_many_magnitudes(rows, depth), packed(72, depth, form)
    by_pairs = product(x, weight)
    ops.set_uses_vnni(True)
    assert_same_bits(product(x, weight), by_pairs)
    for other in WORD_ISAS:
        if other in ops.cpu_isas():
            ops.set_isa(other)
            assert_same_bits(product(x, weight), by_pairs)
    ops.set_isa(isa)


@of_forms
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_that_go_past_the_caches_are_those_of_few_rows(form: KeptForm, dtype: torch.dtype) -> None:
    weight, bias = packed(4_128, 70, form), torch.randn(4_128).bfloat16()
    x = of_many_magnitudes(300, 90)[:, 10:80]
    whole, few = torch.empty(300, 4_128, dtype=dtype), torch.empty(7, 4_128, dtype=dtype)
    ops.linear(whole, x, weight, bias)
    for first in (0, 140, 293):
        ops.linear(few, x[first : first + 7], weight, bias)
        assert_same_bits(few, whole[first : first + 7])


@pytest.mark.parametrize("largest", [127.0, 255.0, -255.0, 254.0, 128.0])
def test_integers_are_multiplied_exactly(largest: float) -> None:
    """The largest mantissa, whose word would not fit two signed bytes, has one of half the size."""
    x = torch.randint(-100, 101, (9, 256)).float()
    x[:, ::32] = largest
    codes = torch.randint(-127, 128, (40, 256))
    codes[:, 0] = 127
    out = product(x.bfloat16(), PackedWeight.of(codes.bfloat16(), "int8"))
    assert torch.equal(out.long(), x.long() @ codes.t())


def test_small_numbers_beside_large_ones_are_exact_down_to_a_64th_and_rounded_below() -> None:
    x = torch.zeros(5, 64).bfloat16()
    for row, (largest, small) in enumerate(
        [(255.0, 255 / 64), (128.0, 255 / 128), (1.0, 1 / 64), (255.0, 255 / 128), (-1.5, 2.0**-15)]
    ):
        x[row, 0], x[row, 1] = largest, small
    codes = torch.zeros(32, 64).bfloat16()
    codes[:, 1] = 127
    out = product(x, PackedWeight.of(codes, "int8"))[:, 0] / 127
    assert out[:4].tolist() == [255 / 64, 255 / 128, 1 / 64, 2.0]
    # Half a step of the block, which is the even one's.
    assert out[4] == 0
    assert (out - x[:, 1].float()).abs().le(x[:, 0].abs() / 32_640).all()


def test_scales_of_rows_and_groups_meet_before_a_sum_could_overflow() -> None:
    weight = PackedWeight((32, 32), torch.bfloat16, GroupForm(8, 32, False))
    codes = torch.full((32, 32), 100, dtype=torch.int8)
    weight.fill_group_codes(GroupCodes(codes, torch.full((32, 1), 1e-3), None))
    x = torch.zeros(2, 32).bfloat16()
    x[:, 5] = 2e38
    expected = x[0, 5].float() * 100e-3
    assert product(x, weight).isclose(expected).all()


@pytest.mark.parametrize("rows", [1, 3, 9, 40])
@pytest.mark.parametrize("has_vnni", [False, True])
def test_the_largest_integers_of_8_bits_do_not_overflow(
    has_vnni: bool, rows: int, without_vnni: None
) -> None:
    ops.set_uses_vnni(has_vnni)
    form = GroupForm(4, 128, True, takes_int8=True)
    weight = PackedWeight((40, 256), torch.bfloat16, form)
    codes, ones = torch.full((40, 256), 15, dtype=torch.int8), torch.ones(40, 2)
    weight.fill_group_codes(GroupCodes(codes, ones, 0 * ones))
    x = torch.full((rows, 256), 127.0).bfloat16()
    x[::2] *= -1
    expected = (x[:, :1].float() * (15 * 256)).expand(rows, 40)
    assert torch.equal(product(x, weight), expected)


@pytest.mark.parametrize("rows", [1, 3, 9, 40])
@pytest.mark.parametrize("has_vnni", [False, True])
@pytest.mark.parametrize(
    ("form", "code"),
    [
        (GroupForm(4, 16, False, has_units=True), -8),
        (GroupForm(4, 32, True, has_units=True), 15),
        (GroupForm(6, 16, False, has_units=True), -32),
        (GroupForm(6, 16, True, has_units=True), 63),
    ],
    ids=str,
)
def test_the_largest_codes_and_scales_in_units_do_not_overflow(
    form: GroupForm, code: int, has_vnni: bool, rows: int, without_vnni: None
) -> None:
    ops.set_uses_vnni(has_vnni)
    weight = PackedWeight((40, 256), torch.bfloat16, form)
    units = torch.ones(40, 1)
    scales = torch.full((40, 256 // form.group), -128.0)
    offsets = (0 * scales, units) if form.has_offsets else (None, None)
    codes = torch.full((40, 256), code, dtype=torch.int8)
    weight.fill_group_codes(GroupCodes(codes, scales, offsets[0], ScaleUnits(units, offsets[1])))
    # The largest mantissa whose word has all bits, and no other number.
    x = torch.full((rows, 256), 254.0).bfloat16()
    x[::2] *= -1
    expected = (x[:, :1].float() * (code * -128 * 256)).expand(rows, 40)
    assert torch.equal(product(x, weight), expected)


@_of(BYTE_FORMS)
def test_bytes_of_tiny_numbers_are_zero(form: KeptForm) -> None:
    x, weight = torch.zeros(2, 256).bfloat16(), packed(40, 256, form)
    x[0], x[1] = 2.0**-121, 2.0**-115
    out = product(x, weight)
    assert torch.equal(out[0], torch.zeros(40))
    assert out[1].abs().min() > 0


@of_words
def test_blocks_of_tiny_numbers_are_zero_and_others_stay(form: KeptForm, isa: str) -> None:
    x, weight = torch.zeros(3, 256).bfloat16(), packed(40, 256, form)
    x[0, :128], x[1, 128:], x[2, :128], x[2, 128:] = 2.0**-113, 2.0**-112, -(2.0**-130), -3.0
    out = product(x, weight)
    assert torch.equal(out[0], torch.zeros(40))
    is_there = out[1] != 0
    # Scales in units may be zero themselves.
    has_units = isinstance(form, GroupForm) and form.has_units
    assert is_there.any() if has_units else is_there.all()
    x[2, :128] = 0
    assert_same_bits(product(x, weight)[2], out[2])
    assert torch.equal(multiplied(x[2:], form, isa), x[2:].double())


@of_forms
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_makes_nan_of_its_row_alone(value: float, form: KeptForm) -> None:
    x, weight = torch.randn(9, 100).bfloat16(), packed(40, 100, form)
    expected = product(x, weight)
    x[4, 99] = value
    out = product(x, weight)
    assert out[4].isnan().all()
    others = [row for row in range(9) if row != 4]
    assert_same_bits(out[others], expected[others])
