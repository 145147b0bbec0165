"""Experts on a GPU: the choice of the CPU, products as exact as torch's, the same bits in any batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from splitserve.worker.ops.cpu import ops as cpu_ops
from splitserve.worker.ops.dense_weight import DenseWeight
from splitserve.worker.ops.layers.experts import Routing
from splitserve.worker.ops.mxfp4_weight import Mxfp4Weight
from splitserve.worker.ops.quantization import dequantize_mxfp4, quantize_mxfp4
from tests.gpu.conftest import Gpu
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits
from tests.worker.ops.test_experts import SIZES, routing_of


def route(gpu: Gpu, logits: Tensor, chosen: int, adds_up: bool = True) -> Routing:
    empty = routing_of(logits.shape[0], logits.shape[1], chosen)
    routing = Routing(*(tensor.to(gpu.device) for tensor in empty))
    gpu.ops.experts.route(routing, logits.to(gpu.device), adds_up)
    return routing


def on_cpu(routing: Routing) -> Routing:
    return Routing(*(tensor.cpu() for tensor in routing))


@pytest.mark.parametrize("adds_up", [False, True])
@pytest.mark.parametrize(("tokens", "num_experts", "chosen"), [*SIZES, (90, 5, 4)])
def test_the_choice_is_that_of_the_cpu(
    gpu: Gpu, tokens: int, num_experts: int, chosen: int, adds_up: bool
) -> None:
    logits = 4 * torch.randn(tokens, num_experts)
    # Equal ones, too.
    logits[0] = logits[0].round()
    found, expected = on_cpu(route(gpu, logits, chosen, adds_up)), routing_of(tokens, num_experts, chosen)
    cpu_ops.experts.route(expected, logits, adds_up)
    assert torch.equal(found.ids, expected.ids)
    assert torch.equal(found.places, expected.places)
    assert torch.equal(found.starts, expected.starts)
    torch.testing.assert_close(found.weights, expected.weights, rtol=2e-6, atol=0)


def test_a_row_with_nan_has_nan_weights_and_real_experts(gpu: Gpu) -> None:
    logits = torch.randn(4, 40)
    logits[1, 17], logits[2], logits[3, 35] = -torch.nan, torch.nan, torch.inf
    found = on_cpu(route(gpu, logits, 3))
    assert found.weights.isnan().any(1).tolist() == [False, True, True, True]
    assert all(len(set(row)) == 3 for row in found.ids.tolist())
    assert sorted(found.places.tolist()) == list(range(12))


@pytest.mark.parametrize("size", [1, 40, 301])
def test_rows_are_copied_to_their_places(gpu: Gpu, size: int, dtype: torch.dtype) -> None:
    x, found = gpu.randn(9, size, dtype=dtype), route(gpu, torch.randn(9, 6), 2)
    out = gpu.empty_like(x.repeat(2, 1))
    gpu.ops.experts.spread_rows(out, x, found)
    assert torch.equal(out[found.places.long()], x.repeat_interleave(2, 0))


STARTS = [0, 0, 1, 38, 38, 45, 45]


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("depth", "cols"), [(16, 8), (64, 136), (33, 5), (50, 40), (1, 1)])
@pytest.mark.parametrize("out_dtype", ["same", "fp32"])
def test_rows_are_multiplied_with_their_experts(
    gpu: Gpu, depth: int, cols: int, has_bias: bool, out_dtype: str, dtype: torch.dtype
) -> None:
    x, matrices = gpu.randn(45, depth, dtype=dtype), gpu.randn(6 * cols, depth, dtype=dtype)
    bias = gpu.randn(6 * cols, dtype=dtype) if has_bias else None
    starts = torch.tensor(STARTS, dtype=torch.int32, device=gpu.device)
    out = gpu.empty_like(torch.zeros(45, cols, dtype=dtype if out_dtype == "same" else torch.float32))
    out = out.to(gpu.device)
    gpu.ops.experts.linear(out, x, DenseWeight.of(matrices), starts, bias)

    def products(kind: torch.dtype) -> Tensor:
        parts = []
        for expert in range(6):
            columns = slice(expert * cols, (expert + 1) * cols)
            rows = x[STARTS[expert] : STARTS[expert + 1]].cpu().to(kind)
            own_bias = None if bias is None else bias[columns].cpu().to(kind)
            parts.append(F.linear(rows, matrices[columns].cpu().to(kind), own_bias))
        return torch.cat(parts)

    assert_as_exact_as_torch(out.cpu(), products(torch.float32).to(out.dtype), products(torch.float64))


@pytest.mark.parametrize("depth", [48, 33])
def test_a_row_has_the_same_bits_in_any_company(gpu: Gpu, depth: int, dtype: torch.dtype) -> None:
    x, weight = gpu.randn(45, depth, dtype=dtype), DenseWeight.of(gpu.randn(6 * 40, depth, dtype=dtype))
    starts = torch.tensor(STARTS, dtype=torch.int32, device=gpu.device)
    whole = torch.empty(45, 40, dtype=dtype, device=gpu.device)
    gpu.ops.experts.linear(whole, x, weight, starts)
    for begin, end in ((0, 1), (5, 6), (17, 38), (39, 44)):
        part = torch.empty(end - begin, 40, dtype=dtype, device=gpu.device)
        own = (starts - begin).clamp(0, end - begin).int()
        gpu.ops.experts.linear(part, x[begin:end], weight, own)
        assert_same_bits(part.cpu(), whole[begin:end].cpu())


def test_many_rows_of_an_expert_have_the_bits_of_few(gpu: Gpu) -> None:
    x, matrices = gpu.randn(150, 136, dtype=torch.bfloat16), gpu.randn(2 * 40, 136, dtype=torch.bfloat16)
    starts = torch.tensor([0, 79, 150], dtype=torch.int32, device=gpu.device)
    for weight in (DenseWeight.of(matrices), Mxfp4Weight.of(matrices)):
        whole = torch.empty(150, 40, device=gpu.device)
        gpu.ops.experts.linear(whole, x, weight, starts)
        for begin, end in ((0, 1), (64, 90), (149, 150)):
            part = torch.empty(end - begin, 40, device=gpu.device)
            gpu.ops.experts.linear(part, x[begin:end], weight, (starts - begin).clamp(0, end - begin).int())
            assert_same_bits(part.cpu(), whole[begin:end].cpu())


@pytest.mark.parametrize("depth", [32, 160])
def test_codes_of_mxfp4_stand_for_their_numbers(gpu: Gpu, depth: int) -> None:
    codes = torch.randint(0, 256, (2 * 24, depth // 2), dtype=torch.uint8)
    # Of the smallest numbers of a float that is no code's, up to the largest.
    scales = torch.randint(3, 252, (2 * 24, depth // 32), dtype=torch.uint8)
    # Each code, and a largest one in each group: quantising again changes nothing.
    codes[0, :16] = torch.arange(16) * 17
    codes[:, ::16] |= 7
    matrices = dequantize_mxfp4(codes, scales)
    x = torch.eye(depth, dtype=torch.bfloat16).repeat(2, 1).to(gpu.device)
    starts = torch.tensor([0, depth, 2 * depth], dtype=torch.int32, device=gpu.device)
    out = torch.full((2 * depth, 24), torch.nan, device=gpu.device)
    gpu.ops.experts.linear(out, x, Mxfp4Weight.of(matrices.to(gpu.device)), starts)
    expected = torch.cat([matrices[:24].t(), matrices[24:].t()]).float()
    assert torch.equal(out.cpu(), expected)


@pytest.mark.parametrize(("depth", "cols"), [(32, 8), (320, 136), (96, 5), (40, 40)])
def test_products_with_mxfp4_are_as_exact_as_torchs(gpu: Gpu, depth: int, cols: int) -> None:
    x, matrices = gpu.randn(45, depth, dtype=torch.bfloat16), torch.randn(6 * cols, depth)
    codes, scales = quantize_mxfp4(F.pad(matrices, (0, -depth % 32)))
    numbers = dequantize_mxfp4((codes[:, ::2] | codes[:, 1::2] << 4).view(torch.uint8), scales)[:, :depth]
    starts = torch.tensor(STARTS, dtype=torch.int32, device=gpu.device)
    bias = gpu.randn(6 * cols, dtype=torch.bfloat16)
    out = torch.full((45, cols), torch.nan, dtype=torch.bfloat16, device=gpu.device)
    gpu.ops.experts.linear(out, x, Mxfp4Weight.of(matrices.to(gpu.device)), starts, bias)

    def products(kind: torch.dtype) -> Tensor:
        parts = []
        for expert in range(6):
            columns = slice(expert * cols, (expert + 1) * cols)
            rows = x[STARTS[expert] : STARTS[expert + 1]].cpu().to(kind)
            parts.append(F.linear(rows, numbers[columns].to(kind), bias[columns].cpu().to(kind)))
        return torch.cat(parts)

    assert_as_exact_as_torch(out.cpu(), products(torch.float32).bfloat16(), products(torch.float64))


def test_a_group_with_nan_makes_its_own_column_nan(gpu: Gpu) -> None:
    matrices = gpu.randn(16, 64)
    matrices[3, 40] = torch.nan
    x = gpu.randn(2, 64, dtype=torch.bfloat16)
    out = torch.empty(2, 16, device=gpu.device)
    starts = torch.tensor([0, 2], dtype=torch.int32, device=gpu.device)
    gpu.ops.experts.linear(out, x, Mxfp4Weight.of(matrices), starts)
    assert out.isnan().any(0).nonzero().flatten().tolist() == [3]


def test_arguments_of_products_with_mxfp4_are_checked(gpu: Gpu) -> None:
    weight = Mxfp4Weight.of(gpu.randn(16, 64))
    starts = torch.tensor([0, 2], dtype=torch.int32, device=gpu.device)
    out = torch.empty(2, 16, device=gpu.device)
    with pytest.raises(TypeError, match="x: expected bfloat16 for codes of MXFP4"):
        gpu.ops.experts.linear(out, gpu.randn(2, 64), weight, starts)
    with pytest.raises(ValueError, match="weight: expected size 1 in dimension 1"):
        gpu.ops.experts.linear(out, gpu.randn(2, 32, dtype=torch.bfloat16), weight, starts)
    with pytest.raises(ValueError, match="expected whole rows of 64"):
        weight.fill(torch.zeros(2, 32))
    with pytest.raises(ValueError, match="2 rows from 15 do not fit"):
        weight.fill(torch.zeros(2, 64), 15)


@pytest.mark.parametrize("beside", ["nothing", "shared", "gated"])
@pytest.mark.parametrize("size", [1, 70, 300])
def test_outputs_are_added_by_their_weights(gpu: Gpu, size: int, beside: str, dtype: torch.dtype) -> None:
    found = route(gpu, torch.randn(5, 9), 4)
    y, shared = gpu.randn(20, size), gpu.randn(5, size) if beside != "nothing" else None
    gate = gpu.randn(5) if beside == "gated" else None
    out = torch.full((5, size), torch.nan, dtype=dtype, device=gpu.device)
    gpu.ops.experts.combine(out, y, found, shared, gate)
    expected = torch.empty(5, size, dtype=torch.float32)
    placed = [None if tensor is None else tensor.cpu() for tensor in (shared, gate)]
    cpu_ops.experts.combine(expected, y.cpu(), on_cpu(found), *placed)
    torch.testing.assert_close(
        out.cpu(), expected.to(dtype), rtol=1e-5 if dtype == torch.float32 else 0.01, atol=1e-6
    )


def test_other_experts_than_those_held_are_left_out(gpu: Gpu) -> None:
    found, x = route(gpu, torch.randn(5, 9), 4), gpu.randn(5, 70)
    held = found.of_experts(range(2, 5))
    rows = torch.full((20, 70), torch.nan, device=gpu.device)
    gpu.ops.experts.spread_rows(rows, x, held)
    first, last = held.starts[0].item(), held.starts[-1].item()
    is_written = torch.tensor([first <= place < last for place in range(20)])
    assert torch.equal(rows.isnan().all(1).cpu(), ~is_written)
    out = torch.empty(5, 70, device=gpu.device)
    gpu.ops.experts.combine(out, rows, held)
    weights = torch.where((found.ids >= 2) & (found.ids < 5), found.weights, 0.0).sum(1, keepdim=True)
    torch.testing.assert_close(out, x * weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 70])
def test_gates_and_ups_are_clamped_and_multiplied(gpu: Gpu, size: int, dtype: torch.dtype) -> None:
    x = gpu.randn(5, 2 * size, dtype=dtype) * 4
    x[2, 1] = torch.nan
    out, expected = torch.empty(5, size, dtype=dtype, device=gpu.device), torch.empty(5, size)
    gpu.ops.experts.clamped_swiglu(out, x, 1.7, 3.0)
    cpu_ops.experts.clamped_swiglu(expected, x.cpu().float(), 1.7, 3.0)
    rtol = 1e-5 if dtype == torch.float32 else 0.01
    torch.testing.assert_close(out.cpu(), expected.to(dtype), rtol=rtol, atol=1e-5, equal_nan=True)
