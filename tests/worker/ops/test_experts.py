"""Experts: their choice, their products, and their weighted sum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.decode import Recording
from splitserve.worker.ops.layers.experts import Routing
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import WeightForm
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits

experts = ops.experts
# Tokens, experts, experts per token; beyond one register of experts and not.
SIZES = [(1, 1, 1), (1, 8, 2), (5, 7, 7), (33, 60, 4), (2, 128, 8), (3, 1024, 11)]
FORMS: list[tuple[torch.dtype, WeightForm]] = [
    (torch.float32, "plain"),
    (torch.bfloat16, "plain"),
    (torch.bfloat16, "int8"),
    (torch.bfloat16, "int4"),
]


def routing_of(tokens: int, num_experts: int, chosen: int) -> Routing:
    """Memory for a routing, full of what is none."""
    return Routing(
        weights=torch.full((tokens, chosen), torch.nan),
        ids=torch.full((tokens, chosen), -7, dtype=torch.int32),
        places=torch.full((tokens * chosen,), -7, dtype=torch.int32),
        starts=torch.full((num_experts + 1,), -7, dtype=torch.int32),
    )


def route(logits: Tensor, chosen: int, adds_up: bool = True) -> Routing:
    routing = routing_of(logits.shape[0], logits.shape[1], chosen)
    experts.route(routing, logits, adds_up)
    return routing


@pytest.mark.parametrize("adds_up", [False, True])
@pytest.mark.parametrize(("tokens", "num_experts", "chosen"), SIZES)
def test_the_largest_logits_are_chosen_with_their_softmax(
    tokens: int, num_experts: int, chosen: int, adds_up: bool
) -> None:
    logits = 4 * torch.randn(tokens, num_experts)
    found = route(logits, chosen, adds_up)
    largest = logits.topk(chosen)
    assert torch.equal(found.ids.long(), largest.indices)
    exact = logits.double().softmax(-1).gather(1, largest.indices)
    if adds_up:
        exact = exact / exact.sum(-1, keepdim=True)
    assert (found.weights / exact - 1).abs().max() < 2e-6


@pytest.mark.parametrize(("tokens", "num_experts", "chosen"), SIZES)
def test_places_group_slots_by_expert_in_order(tokens: int, num_experts: int, chosen: int) -> None:
    found = route(torch.randn(tokens, num_experts), chosen)
    by_expert = found.ids.flatten().long().argsort(stable=True)
    assert torch.equal(found.places.long()[by_expert], torch.arange(tokens * chosen))
    counts = found.ids.flatten().long().bincount(minlength=num_experts)
    assert found.starts.tolist() == [0, *counts.cumsum(0).tolist()]


def test_of_equal_logits_the_lower_expert_comes_first() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 1.0, 3.0, 1.0], [0.0, -0.0, 0.0, -0.0, 0.0, -0.0]])
    assert route(logits, 4).ids.tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]


@pytest.mark.parametrize("adds_up", [False, True])
def test_a_row_with_nan_has_nan_weights_and_real_experts(adds_up: bool) -> None:
    logits = torch.randn(4, 20)
    logits[1, 17], logits[2], logits[3, 5] = -torch.nan, torch.nan, torch.inf
    found = route(logits, 3, adds_up)
    assert found.weights.isnan().any(1).tolist() == [False, True, True, True]
    assert all(len(set(row)) == 3 for row in found.ids.tolist())
    assert found.starts[-1] == 12
    alone = route(logits[:1], 3, adds_up)
    assert_same_bits(found.weights[:1], alone.weights)


def test_a_token_is_routed_alike_in_every_company() -> None:
    logits = torch.randn(300, 60)
    ops.set_num_threads(2)
    for adds_up in (False, True):
        whole = route(logits, 5, adds_up)
        for begin, end in ((0, 1), (7, 40), (299, 300)):
            part = route(logits[begin:end], 5, adds_up)
            assert_same_bits(part.weights, whole.weights[begin:end])
            assert torch.equal(part.ids, whole.ids[begin:end])


def test_rows_are_copied_to_the_places_of_their_slots(dtype: torch.dtype) -> None:
    x, found = torch.randn(9, 70).to(dtype), route(torch.randn(9, 6), 2)
    wide = torch.zeros(18, 50).to(dtype)
    experts.spread_rows(wide[:, 3:43], x[:, 20:60], found)
    for slot, place in enumerate(found.places.tolist()):
        assert torch.equal(wide[place, 3:43], x[slot // 2, 20:60])
    assert wide[:, :3].abs().sum() == wide[:, 43:].abs().sum() == 0


@pytest.mark.parametrize(("dtype", "form"), FORMS)
@pytest.mark.parametrize(("depth", "cols"), [(64, 96), (70, 40), (2048, 24), (33, 1)])
@pytest.mark.parametrize("out_dtype", ["same", "fp32"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_every_row_has_the_bits_of_its_own_experts_linear(
    depth: int, cols: int, has_bias: bool, out_dtype: str, dtype: torch.dtype, form: WeightForm
) -> None:
    matrices = [torch.randn(cols, depth).to(dtype) for _ in range(6)]
    weight = PackedWeight.of_experts(matrices, form)
    # One without rows at either end and within, others with one row and more than a tile of them.
    counts = [0, 1, 40, 0, 7, 0]
    starts = torch.tensor([0, 0, 1, 41, 41, 48, 48], dtype=torch.int32)
    x = torch.randn(48, depth).to(dtype)
    bias = torch.randn(6 * cols).to(dtype) if has_bias else None
    out = torch.full((48, cols), torch.nan, dtype=dtype if out_dtype == "same" else torch.float32)
    expected = torch.empty_like(out)
    for expert, (begin, count) in enumerate(zip(starts.tolist(), counts, strict=False)):
        rows = slice(begin, begin + count)
        own_bias = None if bias is None else bias[expert * cols : (expert + 1) * cols]
        ops.linear(expected[rows], x[rows], PackedWeight.of(matrices[expert], form), own_bias)
    for threads in (1, 2):
        ops.set_num_threads(threads)
        out.fill_(torch.nan)
        experts.linear(out, x, weight, starts, bias)
        assert_same_bits(out, expected)


def test_what_lies_beside_the_rows_is_neither_read_nor_written(dtype: torch.dtype) -> None:
    weight = PackedWeight.of_experts([torch.randn(30, 40).to(dtype) for _ in range(3)])
    starts = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    wide_x, wide_out = torch.full((5, 100), torch.nan).to(dtype), torch.zeros(5, 90).to(dtype)
    wide_x[:, 20:60] = x = torch.randn(5, 40).to(dtype)
    dense = torch.empty(5, 30, dtype=dtype)
    experts.linear(dense, x, weight, starts)
    experts.linear(wide_out[:, 30:60], wide_x[:, 20:60], weight, starts)
    assert_same_bits(wide_out[:, 30:60], dense)
    assert wide_out[:, :30].abs().sum() == wide_out[:, 60:].abs().sum() == 0


@pytest.mark.parametrize("size", [1, 7, 16, 70])
def test_gates_and_ups_are_clamped_and_multiplied(size: int, dtype: torch.dtype) -> None:
    x = (4 * torch.randn(5, 2 * size)).to(dtype)
    wide = torch.zeros(5, size + 9).to(dtype)
    experts.clamped_swiglu(wide[:, 3 : size + 3], x, 1.7, 3.0)

    def gated(kind: torch.dtype) -> Tensor:
        gate, up = x[:, ::2].to(kind).clamp(max=3.0), x[:, 1::2].to(kind).clamp(-3.0, 3.0)
        return gate * (1.7 * gate).sigmoid() * (up + 1)

    out = wide[:, 3 : size + 3]
    assert_as_exact_as_torch(out, gated(torch.float32).to(dtype), gated(torch.float64))
    assert wide[:, :3].abs().sum() == wide[:, size + 3 :].abs().sum() == 0
    x[2, 1] = torch.nan
    experts.clamped_swiglu(out, x, 1.7, 3.0)
    assert out.isnan().nonzero().tolist() == [[2, 0]]


def combined(
    y: Tensor, routing: Routing, dtype: torch.dtype, shared: Tensor | None = None, gate: Tensor | None = None
) -> Tensor:
    out = torch.full((len(routing.ids), y.shape[1]), torch.nan, dtype=dtype)
    experts.combine(out, y, routing, shared, gate)
    return out


@pytest.mark.parametrize("beside", ["nothing", "shared", "gated"])
@pytest.mark.parametrize(("tokens", "size"), [(1, 33), (5, 70), (3, 2100)])
def test_outputs_are_added_by_their_weights(tokens: int, size: int, beside: str, dtype: torch.dtype) -> None:
    found = route(torch.randn(tokens, 9), 4)
    y = torch.randn(tokens * 4, size)
    shared = torch.randn(tokens, size) if beside != "nothing" else None
    gate = torch.randn(tokens) if beside == "gated" else None
    chosen = y[found.places.long()].view(tokens, 4, size)

    def total(kind: torch.dtype) -> Tensor:
        result = (chosen.to(kind) * found.weights.to(kind).unsqueeze(-1)).sum(1)
        if shared is not None:
            scale = 1.0 if gate is None else gate.to(kind).sigmoid().unsqueeze(1)
            result = result + scale * shared.to(kind)
        return result

    out = combined(y, found, dtype, shared, gate)
    assert_as_exact_as_torch(out, total(torch.float32).to(dtype), total(torch.float64))


def test_a_sum_has_the_same_bits_in_every_company(dtype: torch.dtype) -> None:
    logits, x, shared, gate = (
        torch.randn(40, 9),
        torch.randn(40, 1300),
        torch.randn(40, 1300),
        torch.randn(40),
    )
    outputs = []
    for begin, end, threads in ((0, 40, 2), (17, 18, 1), (17, 30, 2)):
        ops.set_num_threads(threads)
        found = route(logits[begin:end], 3)
        rows = torch.empty(3 * (end - begin), 1300)
        experts.spread_rows(rows, x[begin:end], found)
        rows *= torch.arange(3).add(1).repeat(end - begin)[found.places.argsort()].unsqueeze(1)
        outputs.append(combined(rows, found, dtype, shared[begin:end], gate[begin:end]))
    assert_same_bits(outputs[0][17:18], outputs[1])
    assert_same_bits(outputs[0][17:30], outputs[2])


@pytest.mark.parametrize("held", [range(0, 2), range(2, 6), range(3, 4)])
def test_other_experts_than_those_held_are_left_out(held: range) -> None:
    matrices = [torch.randn(40, 64).bfloat16() for _ in range(6)]
    x, found = torch.randn(5, 64).bfloat16(), route(torch.randn(5, 6), 3)

    def run(weight: PackedWeight, routing: Routing) -> Tensor:
        rows, y = torch.full((15, 64), torch.nan).bfloat16(), torch.full((15, 40), torch.nan)
        experts.spread_rows(rows, x, routing)
        experts.linear(y, rows, weight, routing.starts)
        return combined(y, routing, torch.float32)

    out = run(PackedWeight.of_experts([matrices[expert] for expert in held]), found.of_experts(held))
    is_held = (found.ids >= held.start) & (found.ids < held.stop)
    expected = found._replace(weights=torch.where(is_held, found.weights, 0.0))
    assert_same_bits(out, run(PackedWeight.of_experts(matrices), expected))


def test_a_recording_follows_the_choice_of_each_run() -> None:
    weight = PackedWeight.of_experts([torch.randn(40, 64).bfloat16() for _ in range(6)])
    logits, x = torch.randn(5, 6), torch.randn(5, 64).bfloat16()
    routing = routing_of(5, 6, 2)
    rows, y, out = torch.empty(10, 64).bfloat16(), torch.empty(10, 40), torch.empty(5, 40)

    def run() -> None:
        experts.route(routing, logits, True)
        experts.spread_rows(rows, x, routing)
        experts.linear(y, rows, weight, routing.starts)
        experts.combine(out, y, routing)

    with Recording() as recording:
        run()
    for _ in range(3):
        logits.copy_(torch.randn(5, 6))
        x.copy_(torch.randn(5, 64))
        run()
        expected = out.clone()
        out.fill_(torch.nan)
        recording.replay()
        assert_same_bits(out, expected)


def test_what_does_not_fit_is_refused_before_anything_is_read() -> None:
    found = route(torch.randn(3, 5), 2)
    x, y, out = torch.zeros(6, 8), torch.zeros(6, 4), torch.zeros(3, 4)
    weight = PackedWeight.of_experts([torch.zeros(4, 8)] * 5)
    for starts in ([0, 1, 0, 6, 6, 6], [0, 1, 2, 3, 4, 7], [-1, 0, 2, 3, 4, 6]):
        with pytest.raises(ValueError, match="starts: "):
            experts.linear(y, x, weight, torch.tensor(starts, dtype=torch.int32))
    with pytest.raises(ValueError, match="packed: expected size"):
        experts.linear(y, x, weight, found.starts[:-1])
    with pytest.raises(ValueError, match="starts: expected those of an expert, got 1"):
        experts.combine(out, y, found.of_experts(range(2, 2)))
    with pytest.raises(ValueError, match="bias: expected size 20"):
        experts.linear(y, x, weight, found.starts, torch.zeros(4))
    with pytest.raises(ValueError, match="x: expected an even last dimension"):
        experts.clamped_swiglu(torch.zeros(6, 2), torch.zeros(6, 5), 1.0, 1.0)
    with pytest.raises(ValueError, match="alpha, limit: must be positive"):
        experts.clamped_swiglu(y, x, 1.0, 0.0)
    for bad in (-1, 6):
        places = found.places.clone()
        places[4] = bad
        with pytest.raises(ValueError, match=f"places: {bad} is not one of 6"):
            experts.combine(out, y, found._replace(places=places))
        with pytest.raises(ValueError, match=f"places: {bad} is not one of 6"):
            experts.spread_rows(x, torch.zeros(3, 8), found._replace(places=places))
    with pytest.raises(ValueError, match="out: expected a multiple of 3 rows, got 4"):
        experts.spread_rows(x[:4], torch.zeros(3, 8), found._replace(places=found.places[:4]))
    with pytest.raises(ValueError, match="gate: there is nothing"):
        experts.combine(out, y, found, None, torch.zeros(3))
    with pytest.raises(ValueError, match="ids: expected 1 to 5 per token, got 6"):
        experts.route(routing_of(3, 5, 6), torch.zeros(3, 5), True)
    with pytest.raises(ValueError, match="logits: expected at most 1024 experts"):
        experts.route(routing_of(1, 1025, 1), torch.zeros(1, 1025), True)
