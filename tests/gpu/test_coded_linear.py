"""Products with weights of codes: what the codes say, bit by bit, and the same bits in any batch."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from splitserve.worker.ops.codes.weight import CodedWeight
from splitserve.worker.ops.cpu import ops as cpu_ops
from splitserve.worker.ops.cuda import CudaOps
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import GroupCodes, GroupForm, KeptForm, WeightForm, quantize_int8
from tests.gpu.conftest import Gpu
from tests.gpu.emulated.build import build
from tests.worker.ops.helpers import assert_same_bits
from tests.worker.ops.test_group_linear import FORMS as GROUP_FORMS
from tests.worker.ops.test_group_linear import draw, values
from tests.worker.ops.test_w8a8_linear import reference

BY_OUTPUT = GroupForm(8, 0, False)
FORMS = [*GROUP_FORMS, GroupForm(8, 16, True), GroupForm(8, 16, False, is_float=True), BY_OUTPUT]
HALVES = [torch.bfloat16, torch.float16]

of_forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(map(str, form)))
of_halves = pytest.mark.parametrize("half", HALVES, ids=["bf16", "fp16"])


def codes_of(rows: int, columns: int, form: GroupForm) -> GroupCodes:
    """As `draw` makes them; scales of outputs as of one large group."""
    return draw(rows, columns, form if form.group else form._replace(group=1 << 20))


def worth(codes: GroupCodes, form: GroupForm) -> Tensor:
    return values(codes, form if form.group else form._replace(group=1 << 20))


def pack(gpu: Gpu, codes: GroupCodes, form: GroupForm) -> CodedWeight:
    kept: KeptForm = form.kept
    weight = CodedWeight((len(codes.codes), codes.codes.shape[1]), kept, gpu.device)
    weight.fill_group_codes(codes)
    return weight


@of_forms
@of_halves
def test_a_weight_is_its_code_times_scale_plus_offset_bit_by_bit(
    gpu: Gpu, half: torch.dtype, form: GroupForm
) -> None:
    codes = codes_of(40, 72, form)
    weight, x = pack(gpu, codes, form), torch.eye(72, device=gpu.device).to(half)
    out, few = gpu.empty_like(gpu.randn(72, 40)), gpu.empty_like(gpu.randn(2, 40))
    gpu.ops.linear(out, x, weight)
    assert torch.equal(out.t().cpu(), worth(codes, form))
    gpu.ops.linear(few, x[50:52], weight)
    assert_same_bits(few.cpu(), out[50:52].cpu())


@of_forms
@of_halves
@pytest.mark.parametrize(("rows", "depth", "cols"), [(1, 1, 1), (3, 301, 70), (18, 100, 33)])
def test_sums_are_as_exact_as_float32(
    gpu: Gpu, half: torch.dtype, rows: int, depth: int, cols: int, form: GroupForm
) -> None:
    codes = codes_of(cols, depth, form)
    x, bias = gpu.randn(rows, depth, dtype=half), gpu.randn(cols, dtype=half)
    out, rounded = gpu.empty_like(gpu.randn(rows, cols)), gpu.empty_like(gpu.randn(rows, cols, dtype=half))
    weight = pack(gpu, codes, form)
    gpu.ops.linear(out, x, weight, bias)
    plain, numbers = x.cpu().double(), worth(codes, form).double()
    exact = F.linear(plain, numbers, bias.cpu().double())
    size = codes.scales.abs() * 15 + (0 if codes.offsets is None else codes.offsets.abs())
    sizes = size.double().repeat_interleave(form.group or depth, 1)[:, :depth]
    bound = F.linear(plain.abs(), numbers.abs() + sizes) + 4
    assert ((out.cpu() - exact).abs() <= 4 * torch.finfo(torch.float32).eps * bound).all()
    if out.abs().max() < torch.finfo(half).max:
        gpu.ops.linear(rounded, x, weight, bias)
        assert_same_bits(rounded.cpu(), out.to(half).cpu())


@pytest.fixture
def set_compute_capability(emulated_ops: CudaOps) -> Iterator[Callable[[int], None]]:
    """Say what the emulated GPU is: one older than 9 has no products of warpgroups."""
    set_major: Callable[[int], None] = ctypes.CDLL(str(build())).set_compute_capability
    yield set_major
    set_major(9)


@pytest.mark.parametrize("form", [*FORMS, "w8a8"], ids=lambda form: "-".join(map(str, form)))
def test_older_gpus_compute_the_same_bits(
    emulated_ops: CudaOps, set_compute_capability: Callable[[int], None], form: GroupForm | WeightForm
) -> None:
    gpu = Gpu(emulated_ops, torch.device("cpu"), True)
    if isinstance(form, GroupForm):
        weight = pack(gpu, codes_of(70, 545, form), form)
    else:
        weight = CodedWeight.of(torch.randn(70, 545), form, gpu.device)
    x = gpu.randn(70, 545, dtype=torch.bfloat16)
    expected, *found = (gpu.empty_like(gpu.randn(rows, 70)) for rows in (70, 70, 13))
    gpu.ops.linear(expected, x, weight)
    set_compute_capability(8)
    for out in found:
        gpu.ops.linear(out, x[: len(out)], weight)
    for out in found:
        assert_same_bits(out, expected[: len(out)])


@of_forms
def test_every_number_of_rows_gives_a_row_the_same_bits(
    gpu: Gpu, form: GroupForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu.ops, "max_coded_rows", sys.maxsize)
    # So many outputs that a thread block has several panels, one after the other.
    rows, cols = (130, 300) if gpu.is_emulated else (2100, 12000)
    weight, x = pack(gpu, codes_of(cols, 545, form), form), gpu.randn(rows, 545, dtype=torch.bfloat16)
    whole = gpu.empty_like(gpu.randn(rows, cols))
    gpu.ops.linear(whole, x, weight)
    for first, last in ((0, 1), (70, 87), (rows - 67, rows), (rows - 1, rows), (3, 11), (5, 14)):
        part = gpu.empty_like(whole[first:last])
        gpu.ops.linear(part, x[first:last], weight)
        assert_same_bits(part.cpu(), whole[first:last].cpu())


@of_forms
@of_halves
def test_many_rows_are_multiplied_with_the_weight_written_out(
    gpu: Gpu, half: torch.dtype, form: GroupForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = codes_of(40, 72, form)
    weight, x, bias = pack(gpu, codes, form), gpu.randn(9, 72).to(half), gpu.randn(40).to(half)
    dense = worth(codes, form).to(half).to(gpu.device)
    found, expected = gpu.empty_like(gpu.randn(9, 40).to(half)), gpu.empty_like(gpu.randn(9, 40).to(half))
    monkeypatch.setattr(gpu.ops, "max_coded_rows", 8)
    gpu.ops.linear(found, x, weight, bias)
    gpu.ops.dense_linear(expected, x, dense, bias)
    assert_same_bits(found, expected)


@of_forms
def test_what_lies_beside_the_rows_of_x_is_not_read(gpu: Gpu, form: GroupForm) -> None:
    weight, x = pack(gpu, codes_of(40, 45, form), form), gpu.randn(7, 45, dtype=torch.bfloat16)
    alone, inside = gpu.empty_like(gpu.randn(7, 40)), gpu.empty_like(gpu.randn(7, 40))
    gpu.ops.linear(alone, x, weight)
    # Rows that do not begin at multiples of 16 bytes are copied there first.
    for first, width in ((3, 99), (8, 96)):
        wide = torch.full((7, width), torch.nan, dtype=torch.bfloat16, device=gpu.device)
        wide[:, first : first + 45] = x
        gpu.ops.linear(inside, wide[:, first : first + 45], weight)
        assert_same_bits(inside.cpu(), alone.cpu())


@of_forms
@of_halves
def test_rows_can_be_looked_up(gpu: Gpu, half: torch.dtype, form: GroupForm) -> None:
    codes, ids = codes_of(70, 45, form), torch.tensor([69, 0, 32, 70, 69], device=gpu.device)
    out = gpu.empty_like(gpu.randn(5, 45, dtype=half))
    gpu.ops.embedding(out, ids, pack(gpu, codes, form))
    assert out[3].isnan().all()
    there = [0, 1, 2, 4]
    assert_same_bits(out.cpu()[there], worth(codes, form)[ids.cpu()[there]].to(half))


@of_forms
def test_experts_have_the_products_of_their_own_weights(gpu: Gpu, form: GroupForm) -> None:
    codes, x = [codes_of(40, 70, form) for _ in range(3)], gpu.randn(60, 70, dtype=torch.bfloat16)
    weight = CodedWeight((120, 70), form.kept, gpu.device, 3)
    for expert, each in enumerate(codes):
        # In pieces, as files are read.
        for first, some in ((0, slice(7)), (7, slice(7, None))):
            offsets = None if each.offsets is None else each.offsets[some]
            weight.fill_group_codes(
                GroupCodes(each.codes[some], each.scales[some], offsets), 40 * expert + first
            )
    bias = gpu.randn(120, dtype=torch.bfloat16)
    # Few rows for each of them, and many.
    for starts in ([0, 2, 2, 9], [0, 2, 2, 60]):
        out = torch.full((starts[-1], 40), torch.nan, device=gpu.device)
        gpu.ops.experts.linear(
            out, x[: starts[-1]], weight, torch.tensor(starts, dtype=torch.int32, device=gpu.device), bias
        )
        for expert, each in enumerate(codes):
            own = slice(starts[expert], starts[expert + 1])
            expected = torch.full((len(x[own]), 40), torch.nan, device=gpu.device)
            gpu.ops.linear(expected, x[own], pack(gpu, each, form), bias[40 * expert : 40 * expert + 40])
            assert_same_bits(out[own].cpu(), expected.cpu())


@pytest.mark.parametrize("form", ["int8", "int4", "w8a8"])
@of_halves
def test_matrices_are_quantised_as_on_a_cpu(gpu: Gpu, half: torch.dtype, form: WeightForm) -> None:
    matrix, bias = torch.randn(70, 130), torch.randn(70).to(half)
    # Numbers that a CPU does not round where they become integers.
    x = (torch.randint(-100, 101, (5, 130)) / 64).to(half)
    weight = CodedWeight((70, 130), form, gpu.device)
    for first, last in ((0, 33), (33, 70)):
        weight.fill(matrix[first:last].t().contiguous().t().to(gpu.device), first)
    assert weight.num_bytes < (40 if form == "int4" else 80) * 130 * 2
    out = gpu.empty_like(gpu.randn(5, 70))
    gpu.ops.linear(out, x.to(gpu.device), weight, bias.to(gpu.device))
    if form == "w8a8":
        # Sums are exact, so that the CPU's bits are those of any device.
        assert_same_bits(out.cpu(), reference(x, matrix, bias))
        return
    packed, expected = PackedWeight((70, 130), torch.bfloat16, form), torch.empty(5, 70)
    packed.fill(matrix)
    # Rows that both devices can hold.
    x = x.bfloat16()
    gpu.ops.linear(out, x.to(half).to(gpu.device), weight)
    cpu_ops.linear(expected, x, packed)
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-5, atol=1e-4)


# Rows in whole chunks of 16 bytes, and others.
@pytest.mark.parametrize("depth", [161, 192])
def test_integers_of_rows_and_weights_have_the_same_bits_for_any_number_of_rows(gpu: Gpu, depth: int) -> None:
    # So many that a thread block takes 128 of them with 256 outputs.
    rows, cols = (130, 300) if gpu.is_emulated else (2100, 2400)
    matrix, x = torch.randn(cols, depth), torch.randn(rows, depth).bfloat16()
    x[1], x[2, 160], x[3, 0], x[4] = 0, torch.nan, -torch.inf, 1e-38
    weight, expected = CodedWeight.of(matrix, "w8a8", gpu.device), reference(x, matrix, None)
    for some in (slice(0, 1), slice(60, 90), slice(0, rows)):
        out = gpu.empty_like(gpu.randn(len(x[some]), cols))
        gpu.ops.linear(out, x[some].to(gpu.device), weight)
        found = out.cpu()
        sound = [i for i in range(len(found)) if not (some.start == 0 and i in (2, 3, 4))]
        assert_same_bits(found[sound], expected[some][sound])
    assert found[2:4].isnan().all()
    assert (found[4].abs() < 1e-35).all()


def test_a_shard_of_the_inputs_has_the_scales_of_whole_rows(gpu: Gpu) -> None:
    matrix = torch.randn(40, 96)
    for form in ("int8", "w8a8"):
        shard = CodedWeight((40, 32), form, gpu.device)
        shard.fill(matrix, kept=range(32, 64))
        assert torch.equal(shard.scales.cpu(), quantize_int8(matrix).scales)


def test_what_does_not_fit_is_refused(gpu: Gpu) -> None:
    weight, x = CodedWeight((40, 64), GroupForm(4, 32, False), gpu.device), gpu.randn(2, 64)
    out = gpu.randn(2, 40)
    with pytest.raises(TypeError, match="x: codes multiply 16 bits, not float32"):
        gpu.ops.linear(out, x, weight)
    with pytest.raises(ValueError, match="codes: expected size 3"):
        gpu.ops.linear(out, gpu.randn(2, 65, dtype=torch.bfloat16), weight)
    with pytest.raises(TypeError, match="out: expected the dtype of x or float32"):
        gpu.ops.linear(out.half(), x.bfloat16(), weight)
    with pytest.raises(ValueError, match="whole rows of 64 to quantize"):
        CodedWeight((40, 64), "int8", gpu.device).fill(torch.zeros(4, 63))
    with pytest.raises(ValueError, match="do not fit"):
        weight.fill_group_codes(draw(4, 64, GroupForm(4, 32, False)), 37)
    for scales in (torch.ones(2, 3, 1, 32), torch.ones(2, 2, 3, 32), torch.ones(40)):
        weight.scales = scales.to(gpu.device)
        with pytest.raises(ValueError, match="scales"):
            gpu.ops.linear(out, x.bfloat16(), weight)
    long = CodedWeight((1, 65537), "w8a8", gpu.device)
    with pytest.raises(ValueError, match="at most 65536 inputs"):
        gpu.ops.linear(gpu.randn(1, 1), gpu.randn(1, 65537, dtype=torch.bfloat16), long)
    with pytest.raises(ValueError, match="cannot be looked up"):
        gpu.ops.embedding(
            gpu.randn(1, 65537, dtype=torch.bfloat16), torch.tensor([0], device=gpu.device), long
        )
