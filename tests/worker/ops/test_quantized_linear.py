"""linear and embedding on int8 and int4 weights."""

import pytest
import torch
import torch.nn.functional as F

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import WeightForm
from tests.worker.ops.helpers import assert_same_bits
from tests.worker.ops.quantized import FORMS, MXFP4_VALUES, multiplied, weight_and_values

SHAPES = [(1, 1, 1), (1, 64, 9), (2, 33, 5), (3, 100, 64), (5, 257, 131), (18, 128, 70), (1, 31, 33)]

pytestmark = pytest.mark.parametrize("form", FORMS)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("rows", "depth", "cols"), SHAPES)
def test_multiplies_with_the_rounded_weights(
    rows: int, depth: int, cols: int, has_bias: bool, form: WeightForm, isa: str
) -> None:
    weight, values = weight_and_values(cols, depth, form)
    x = torch.randn(rows, depth).bfloat16()
    bias = torch.randn(cols).bfloat16() if has_bias else None
    out = torch.empty(rows, cols)
    ops.linear(out, x, weight, bias)
    exact = F.linear(multiplied(x, form, isa), values, None if bias is None else bias.double())
    # Every rounding is one of float32, of a number no larger than the sum of the magnitudes.
    bound = F.linear(x.double().abs(), values.abs()).max().item() + 4
    assert (out - exact).abs().max().item() <= 2 * bound * torch.finfo(torch.float32).eps


@pytest.mark.parametrize(("depth", "cols"), [(96, 200), (301, 67), (2048, 24)])
def test_rows_do_not_depend_on_batch_or_threads(depth: int, cols: int, form: WeightForm) -> None:
    weight, _ = weight_and_values(cols, depth, form)
    x = torch.randn(131, depth).bfloat16()
    whole = torch.empty(131, cols)
    ops.set_num_threads(2)
    ops.linear(whole, x, weight)
    for threads in (1, 2):
        ops.set_num_threads(threads)
        for start, end in [(0, 1), (130, 131), (1, 3), (5, 8), (9, 13), (100, 107), (17, 50)]:
            part = torch.empty(end - start, cols)
            ops.linear(part, x[start:end], weight)
            assert_same_bits(part, whole[start:end])


def test_rows_of_large_blocks_have_the_bits_of_a_row_alone(form: WeightForm) -> None:
    weight, _ = weight_and_values(40, 545, form)
    x, whole, alone = torch.randn(645, 545).bfloat16(), torch.empty(645, 40), torch.empty(1, 40)
    ops.linear(whole, x, weight)
    for row in (0, 13, 320, 638, 644):
        ops.linear(alone, x[row : row + 1], weight)
        assert_same_bits(alone[0], whole[row])


@pytest.mark.parametrize("depth", [70, 160])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
def test_every_number_of_rows_gives_a_row_the_same_bits(
    depth: int, out_dtype: torch.dtype, form: WeightForm
) -> None:
    weight, _ = weight_and_values(72, depth, form)
    x = torch.randn(40, depth).bfloat16()
    alone = torch.empty(40, 72, dtype=out_dtype)
    for row in range(40):
        ops.linear(alone[row : row + 1], x[row : row + 1], weight)
    for rows in range(2, 41):
        together = torch.empty(rows, 72, dtype=out_dtype)
        ops.linear(together, x[:rows], weight)
        assert_same_bits(together, alone[:rows])


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
def test_every_code_is_multiplied_exactly(out_dtype: torch.dtype, form: WeightForm) -> None:
    if form == "mxfp4":
        # Every group has the largest code, in front or behind.
        values = MXFP4_VALUES[(torch.arange(72).unsqueeze(1) * 7 + torch.arange(288)) % 16]
        out = torch.empty(288, 72, dtype=out_dtype)
        ops.linear(out, torch.eye(288).bfloat16(), PackedWeight.of(values.bfloat16(), form))
        assert torch.equal(out.float(), values.t())
        return
    num_codes, lowest = (255, -127) if form == "int8" else (16, -8)
    # Every row and group has the code of the largest magnitude, so all scales are 1.
    codes = (torch.arange(72).unsqueeze(1) * 7 + torch.arange(288)) % num_codes + lowest
    out = torch.empty(288, 72, dtype=out_dtype)
    ops.linear(out, torch.eye(288).bfloat16(), PackedWeight.of(codes.bfloat16(), form))
    assert torch.equal(out.long(), codes.t())


@pytest.mark.parametrize("depth", [1, 33, 45, 64])
def test_what_lies_beside_the_rows_of_x_is_not_read(depth: int, form: WeightForm) -> None:
    weight, _ = weight_and_values(40, depth, form)
    wide = torch.full((7, depth + 70), torch.nan).bfloat16()
    x = torch.randn(7, depth).bfloat16()
    wide[:, 3 : depth + 3] = x
    inside, alone = torch.empty(7, 40), torch.empty(7, 40)
    ops.linear(inside, wide[:, 3 : depth + 3], weight)
    ops.linear(alone, x, weight)
    assert_same_bits(inside, alone)


@pytest.mark.parametrize("depth", [64, 70])
def test_pieces_of_whole_rows_give_what_the_whole_gives(depth: int, form: WeightForm) -> None:
    matrix = torch.randn(75, depth).bfloat16()
    weight, whole = PackedWeight((75, depth), torch.bfloat16, form), PackedWeight.of(matrix, form)
    for start, end in ((0, 1), (1, 41), (41, 75)):
        weight.fill(matrix[start:end].t().contiguous().t(), start)
    assert torch.equal(weight.data, whole.data)
    if form == "int8":
        assert weight.scales is not None
        assert whole.scales is not None
        assert torch.equal(weight.scales, whole.scales)


def test_parts_of_rows_are_refused(form: WeightForm) -> None:
    weight = PackedWeight((4, 70), torch.bfloat16, form)
    for source, column in ((torch.zeros(4, 69), 0), (torch.zeros(4, 69), 1)):
        with pytest.raises(ValueError, match="source: expected whole rows of 70"):
            weight.fill(source, 0, column)
    with pytest.raises(ValueError, match="source: its rows do not fit a weight of 4 from row 3"):
        weight.fill(torch.zeros(2, 70), 3)


def test_rows_of_int8_can_be_looked_up_and_of_others_not(form: WeightForm) -> None:
    weight, values = weight_and_values(70, 33, form)
    ids, out = torch.tensor([69, 0, 32, 69]), torch.empty(4, 33).bfloat16()
    if form != "int8":
        with pytest.raises(ValueError, match="scales between them cannot be looked up"):
            ops.embedding(out, ids, weight)
    else:
        ops.embedding(out, ids, weight)
        assert_same_bits(out, values[ids].float().bfloat16())


def test_scales_belong_to_int8_alone(form: WeightForm) -> None:
    weight, _ = weight_and_values(4, 8, form)
    weight.scales = None if form == "int8" else torch.ones(4)
    with pytest.raises(ValueError, match="scales: weights of 8 bits and"):
        ops.linear(torch.empty(1, 4), torch.zeros(1, 8).bfloat16(), weight)
