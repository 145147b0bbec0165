"""linear and embedding on the integers of files, with scales and offsets of groups."""

from operator import itemgetter

import pytest
import torch
import torch.nn.functional as F

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import (
    GroupCodes,
    GroupForm,
    Quantized,
)
from tests.worker.ops.helpers import assert_same_bits
from tests.worker.ops.quantized import draw_codes, draw_in_units, multiplied

FORMS = [
    GroupForm(4, 16, True),
    GroupForm(4, 32, False),
    GroupForm(4, 128, True),
    GroupForm(4, 32, True, has_units=True),
    GroupForm(4, 16, False, has_units=True),
    GroupForm(6, 16, False, has_units=True),
    GroupForm(6, 32, False),
    GroupForm(6, 64, True),
    GroupForm(6, 128, True, has_units=True),
    GroupForm(8, 16, False),
    GroupForm(8, 32, True),
    GroupForm(8, 64, False),
    GroupForm(8, 128, False, is_float=True),
]
# Activations that they meet become integers of 8 bits on some processors.
BYTE_FORMS = [
    GroupForm(4, 16, True, takes_int8=True),
    GroupForm(4, 32, False, takes_int8=True),
    GroupForm(4, 32, True, takes_int8=True, has_units=True),
    GroupForm(4, 16, False, takes_int8=True, has_units=True),
    GroupForm(4, 128, True, takes_int8=True),
]
SHAPES = [(1, 1, 1), (2, 33, 5), (3, 100, 64), (18, 301, 70), (40, 256, 33)]


def _of(forms: list[GroupForm]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("form", forms, ids=lambda form: "-".join(map(str, form)))


of_forms, of_exact_forms = _of(FORMS + BYTE_FORMS), _of(FORMS)


def draw(rows: int, columns: int, form: GroupForm) -> GroupCodes:
    """Codes, and scales and offsets with as many digits as half precision times 6 bits has."""
    codes, size = draw_codes(rows, columns, form), (rows, -(-columns // form.group))
    if form.has_units:
        return draw_in_units(codes, form)
    scales = torch.randn(size).half().float() * torch.randint(-32, 64, size)
    offsets = torch.randn(size).half().float() * 9 if form.has_offsets else None
    if form.is_float:
        # All but the two that are no numbers.
        codes = torch.where((codes & 127) == 127, 0, codes).view(torch.uint8)
    return GroupCodes(codes, scales, offsets)


def pack(codes: GroupCodes, form: GroupForm) -> PackedWeight:
    rows, columns = codes.codes.shape
    weight = PackedWeight((rows, columns), torch.bfloat16, form)
    weight.fill_group_codes(codes)
    return weight


def values(codes: GroupCodes, form: GroupForm) -> torch.Tensor:
    """What they are worth in float32."""
    columns = codes.codes.shape[1]
    plain = codes.codes.view(torch.float8_e4m3fn) if form.is_float else codes.codes
    numbers = plain.float() * codes.scales.repeat_interleave(form.group, 1)[:, :columns]
    if codes.offsets is not None:
        numbers += codes.offsets.repeat_interleave(form.group, 1)[:, :columns]
    return numbers


@of_exact_forms
@pytest.mark.parametrize("depth", [45, 290])
def test_a_weight_is_its_code_times_scale_plus_offset_bit_by_bit(depth: int, form: GroupForm) -> None:
    codes = draw(72, depth, form)
    out = torch.empty(depth, 72)
    ops.linear(out, torch.eye(depth).bfloat16(), pack(codes, form))
    assert torch.equal(out.t(), values(codes, form))
    few = torch.empty(2, 72)
    ops.linear(few, torch.eye(depth)[40:42].bfloat16(), pack(codes, form))
    assert_same_bits(few, out[40:42])


@of_forms
@pytest.mark.parametrize(("rows", "depth", "cols"), SHAPES)
def test_sums_are_as_exact_as_float32(rows: int, depth: int, cols: int, form: GroupForm, isa: str) -> None:
    codes = draw(cols, depth, form)
    x, bias, out = torch.randn(rows, depth).bfloat16(), torch.randn(cols).bfloat16(), torch.empty(rows, cols)
    ops.linear(out, x, pack(codes, form), bias)
    exact = F.linear(multiplied(x, form, isa), values(codes, form).double(), bias.double())
    # Codes of 4 and 6 bits without offsets are summed up as numbers from 0 on.
    bound = F.linear(x.double().abs(), values(codes, form).double().abs())
    largest = 2 ** min(form.bits, 6) * codes.scales.double().abs()
    bound += F.linear(x.double().abs(), largest.repeat_interleave(form.group, 1)[:, :depth])
    assert ((out - exact).abs() <= 4 * torch.finfo(torch.float32).eps * (bound + 4)).all()


@of_forms
@pytest.mark.parametrize("depth", [70, 160])
def test_every_number_of_rows_gives_a_row_the_same_bits(depth: int, form: GroupForm) -> None:
    weight, x = pack(draw(72, depth, form), form), torch.randn(40, depth).bfloat16()
    alone = torch.empty(40, 72)
    for row in range(40):
        ops.linear(alone[row : row + 1], x[row : row + 1], weight)
    for rows in range(2, 41):
        together = torch.empty(rows, 72)
        ops.linear(together, x[:rows], weight)
        assert_same_bits(together, alone[:rows])


@of_forms
def test_rows_of_large_batches_have_the_bits_of_a_row_alone(form: GroupForm) -> None:
    weight, x = pack(draw(40, 545, form), form), torch.randn(645, 545).bfloat16()
    whole, alone = torch.empty(645, 40), torch.empty(1, 40)
    for threads in (1, 2):
        ops.set_num_threads(threads)
        ops.linear(whole, x, weight)
        for row in (0, 13, 320, 638, 644):
            ops.linear(alone, x[row : row + 1], weight)
            assert_same_bits(alone[0], whole[row])


@of_forms
def test_what_lies_beside_the_rows_of_x_is_not_read(form: GroupForm) -> None:
    weight, wide, x = pack(draw(40, 45, form), form), torch.full((7, 99), torch.nan), torch.randn(7, 45)
    wide[:, 3:48] = x
    inside, alone = torch.empty(7, 40), torch.empty(7, 40)
    ops.linear(inside, wide.bfloat16()[:, 3:48], weight)
    ops.linear(alone, x.bfloat16(), weight)
    assert_same_bits(inside, alone)


@of_forms
def test_rows_can_be_looked_up(form: GroupForm) -> None:
    codes, ids = draw(70, 45, form), torch.tensor([69, 0, 32, 69])
    out = torch.empty(4, 45).bfloat16()
    ops.embedding(out, ids, pack(codes, form))
    assert_same_bits(out, values(codes, form)[ids].bfloat16())


@of_forms
def test_experts_have_the_products_of_their_own_weights(form: GroupForm) -> None:
    codes, x = [draw(40, 70, form) for _ in range(3)], torch.randn(9, 70).bfloat16()
    weight = PackedWeight((120, 70), torch.bfloat16, form, 3)
    for expert, each in enumerate(codes):
        # In pieces, as files are read.
        for first, some in ((0, slice(7)), (7, slice(7, None))):
            piece = each.each(itemgetter(some))
            weight.fill_group_codes(piece, 40 * expert + first)
    out, starts = torch.empty(9, 40), [0, 2, 2, 9]
    ops.experts.linear(out, x, weight, torch.tensor(starts, dtype=torch.int32))
    for expert, each in enumerate(codes):
        own = x[starts[expert] : starts[expert + 1]]
        expected = torch.empty(len(own), 40)
        ops.linear(expected, own, pack(each, form))
        assert_same_bits(out[starts[expert] : starts[expert + 1]], expected)


def test_int8_with_a_scale_per_row_has_all_256_codes() -> None:
    codes = ((torch.arange(72)[:, None] * 7 + torch.arange(288)) % 256 - 128).to(torch.int8)
    weight = PackedWeight((72, 288), torch.bfloat16, "int8")
    weight.fill_codes(Quantized(codes, torch.ones(72)))
    out = torch.empty(288, 72)
    ops.linear(out, torch.eye(288).bfloat16(), weight)
    assert torch.equal(out.t(), codes.float())
    for row in range(0, 288, 5):
        ops.linear(out[:1], torch.eye(288)[row : row + 1].bfloat16(), weight)
        assert torch.equal(out[0], codes[:, row].float())


@pytest.mark.parametrize(
    ("own", "form"),
    [
        (GroupForm(4, 128, False), GroupForm(4, 32, True)),
        (GroupForm(4, 64, False), GroupForm(8, 16, False)),
        (GroupForm(4, 32, True), GroupForm(8, 16, True)),
        (GroupForm(8, 32, False), GroupForm(8, 16, True)),
        (GroupForm(4, 32, True, has_units=True), GroupForm(6, 16, True, has_units=True)),
        (GroupForm(6, 16, False, has_units=True), GroupForm(6, 16, True, has_units=True)),
        (GroupForm(4, 16, False, has_units=True), GroupForm(6, 16, True, has_units=True)),
        (GroupForm(4, 32, True, has_units=True), GroupForm(8, 16, True)),
        (GroupForm(6, 32, False), GroupForm(6, 32, True)),
    ],
)
def test_a_larger_form_holds_the_same_numbers(own: GroupForm, form: GroupForm) -> None:
    codes = draw(40, 100, own)
    converted = codes.converted(own, form)
    assert own.joined(form) == form
    assert torch.equal(values(converted, form), values(codes, own))
    out, expected = torch.empty(100, 40), values(codes, own).t()
    ops.linear(out, torch.eye(100).bfloat16(), pack(converted, form))
    assert torch.equal(out, expected)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 1, 32), "scales"),
        ((1, 2, 1, 32), "scales"),
        ((2, 2, 3, 32), "scales"),
        ((2, 2, 1, 31), "scales"),
        ((2, 2, 1), "scales"),
    ],
)
@pytest.mark.parametrize("bits", [4, 6, 8])
def test_scales_of_other_shapes_are_refused(shape: tuple[int, ...], message: str, bits: int) -> None:
    weight = PackedWeight((40, 64), torch.bfloat16, GroupForm(bits, 32, False))
    for scales in (torch.ones(shape), None):
        weight.scales = scales
        with pytest.raises(ValueError, match=message):
            ops.linear(torch.empty(1, 40), torch.zeros(1, 64).bfloat16(), weight)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 1, 1, 640), "scales"),
        ((2, 2, 1, 640), "scales"),
        ((2, 1, 3, 640), "scales"),
        ((2, 1, 1, 672), "scales"),
        ((2, 1, 1, 32), "scales"),
    ],
)
@pytest.mark.parametrize("bits", [4, 6])
def test_scales_in_units_of_other_shapes_are_refused(shape: tuple[int, ...], message: str, bits: int) -> None:
    weight = PackedWeight((40, 64), torch.bfloat16, GroupForm(bits, 16, False, has_units=True))
    weight.scales = torch.ones(shape, dtype=torch.uint8)
    with pytest.raises(ValueError, match=message):
        ops.linear(torch.empty(1, 40), torch.zeros(1, 64).bfloat16(), weight)


def test_activations_of_8_bits_are_refused_for_codes_of_6() -> None:
    weight = PackedWeight((40, 64), torch.bfloat16, GroupForm(6, 16, False, has_units=True))
    weight.data = weight.data.view(torch.int8)
    with pytest.raises(ValueError, match="packed: int8 is for codes of 4 bits"):
        ops.linear(torch.empty(1, 40), torch.zeros(1, 64).bfloat16(), weight)


def test_scales_in_units_are_refused_for_codes_of_8_bits() -> None:
    weight = PackedWeight((40, 64), torch.bfloat16, GroupForm(8, 16, False))
    weight.scales = torch.ones(2, 1, 1, 640, dtype=torch.uint8)
    with pytest.raises(TypeError, match="scales"):
        ops.linear(torch.empty(1, 40), torch.zeros(1, 64).bfloat16(), weight)
