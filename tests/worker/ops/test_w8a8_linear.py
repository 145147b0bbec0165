"""linear on int8 weights and activations: integers are exact, so every instruction set has the same bits."""

import pytest
import torch

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import Quantized, quantize_int8
from tests.worker.ops.helpers import assert_same_bits


def reference(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The same in torch, with exact sums."""
    codes, scales = quantize_int8(matrix)
    largest = x.float().abs().amax(1, keepdim=True)
    # A number over a tensor would be the tensor's reciprocal times the number.
    rows = (x.float() * (torch.full_like(largest, 127) / largest)).round()
    rows[largest[:, 0] == 0] = 0
    sums = (rows.double() @ codes.double().t()).float()
    out = sums * (largest / 127.0) * scales
    return out if bias is None else out + bias.float()


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("rows", "depth", "cols"), [(1, 1, 1), (3, 64, 32), (5, 257, 131), (18, 130, 70), (70, 1100, 40)]
)
def test_products_are_those_of_the_rounded_numbers_bit_by_bit(
    rows: int, depth: int, cols: int, has_bias: bool
) -> None:
    x, matrix = torch.randn(rows, depth).bfloat16(), torch.randn(cols, depth).bfloat16()
    bias = torch.randn(cols).bfloat16() if has_bias else None
    out, half = torch.empty(rows, cols), torch.empty(rows, cols).bfloat16()
    weight, expected = PackedWeight.of(matrix, "w8a8"), reference(x, matrix, bias)
    ops.linear(out, x, weight, bias)
    assert_same_bits(out, expected)
    ops.linear(half, x, weight, bias)
    assert_same_bits(half, expected.bfloat16())


def test_every_number_of_rows_gives_a_row_the_same_bits() -> None:
    matrix, x = torch.randn(72, 161).bfloat16(), torch.randn(645, 161).bfloat16()
    weight, expected = PackedWeight.of(matrix, "w8a8"), reference(x, matrix, None)
    for rows in (*range(1, 41), 645):
        together = torch.empty(rows, 72)
        ops.set_num_threads(1 + rows % 2)
        ops.linear(together, x[:rows], weight)
        assert_same_bits(together, expected[:rows])


@pytest.mark.parametrize("rows", [1, 2, 5, 18])
def test_products_are_exact_without_vnni(rows: int) -> None:
    if not ops.uses_vnni():
        pytest.skip("the other tests do without it")
    x, matrix, out = (
        torch.randn(rows, 257).bfloat16(),
        torch.randn(131, 257).bfloat16(),
        torch.empty(rows, 131),
    )
    ops.set_uses_vnni(False)
    try:
        ops.linear(out, x, PackedWeight.of(matrix, "w8a8"))
    finally:
        ops.set_uses_vnni(True)
    assert_same_bits(out, reference(x, matrix, None))


def test_numbers_halfway_between_two_codes_become_the_even_one() -> None:
    x = torch.cat([torch.tensor([127.0]), torch.arange(-126.5, 127)])[None].bfloat16()
    weight = PackedWeight((255, 255), torch.bfloat16, "w8a8")
    weight.fill_codes(Quantized(torch.eye(255, dtype=torch.int8), torch.ones(255)))
    out = torch.empty(1, 255)
    ops.linear(out, x, weight)
    assert torch.equal(out, x.float().round())


def test_all_codes_of_a_file_are_multiplied_exactly() -> None:
    codes = ((torch.arange(72)[:, None] * 7 + torch.arange(288)) % 256 - 128).to(torch.int8)
    weight = PackedWeight((72, 288), torch.bfloat16, "w8a8")
    weight.fill_codes(Quantized(codes, torch.ones(72)))
    out = torch.empty(288, 72)
    ops.linear(out, (127 * torch.eye(288)).bfloat16(), weight)
    assert torch.equal(out.t(), 127 * codes.float())


def test_rows_of_zeros_are_zero_and_rows_with_what_is_no_number_are_none() -> None:
    x = torch.randn(6, 70).bfloat16()
    x[1], x[2, 69], x[3, 0], x[4] = 0, torch.nan, -torch.inf, 1e-38
    matrix, out = torch.randn(33, 70).bfloat16(), torch.empty(6, 33)
    ops.linear(out, x, PackedWeight.of(matrix, "w8a8"))
    assert out[2:4].isnan().all()
    assert (out[1] == 0).all()
    assert (out[4].abs() < 1e-35).all()
    sound = torch.tensor([0, 5])
    assert_same_bits(out[sound], reference(x[sound], matrix, None))


def test_experts_have_the_products_of_their_own_weights() -> None:
    matrices, x = [torch.randn(40, 70).bfloat16() for _ in range(3)], torch.randn(50, 70).bfloat16()
    out, starts = torch.empty(50, 40), [0, 2, 2, 50]
    weight = PackedWeight.of_experts(matrices, "w8a8")
    bias = torch.randn(120).bfloat16()
    ops.experts.linear(out, x, weight, torch.tensor(starts, dtype=torch.int32), bias)
    for expert, matrix in enumerate(matrices):
        own = slice(starts[expert], starts[expert + 1])
        expected = reference(x[own], matrix, bias[40 * expert : 40 * expert + 40])
        assert_same_bits(out[own], expected)


def test_a_shard_of_the_inputs_has_the_scales_of_whole_rows() -> None:
    matrix = torch.randn(40, 96).bfloat16()
    shard = PackedWeight((40, 32), torch.bfloat16, "w8a8")
    shard.fill(matrix, kept=range(32, 64))
    assert shard.scales is not None
    assert torch.equal(shard.scales, quantize_int8(matrix).scales)


def test_rows_cannot_be_looked_up_and_more_inputs_than_sums_hold_are_refused() -> None:
    weight = PackedWeight((1, 65537), torch.bfloat16, "w8a8")
    with pytest.raises(ValueError, match="at most 65536 inputs"):
        ops.linear(torch.empty(1, 1), torch.zeros(1, 65537).bfloat16(), weight)
    with pytest.raises(ValueError, match="cannot be looked up"):
        ops.embedding(torch.empty(1, 65537).bfloat16(), torch.tensor([0]), weight)
