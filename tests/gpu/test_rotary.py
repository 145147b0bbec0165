"""rotary_embedding, kv_write and both in one pass on a GPU."""

import pytest
import torch
from torch import Tensor

from tests.gpu.conftest import Gpu
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits
from tests.worker.ops.test_rotary import make_table, rotate
from worker import ops

# Chunks of whole and of partial vectors; a part of the head unturned.
SHAPES = [(64, 64), (128, 128), (24, 24), (80, 32), (10, 6), (64, 48)]
MAX_POS = 50


def positions_of(gpu: Gpu, tokens: int, index_dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.randint(0, MAX_POS, (tokens,), dtype=index_dtype).to(gpu.device)


class Step:
    """QKV of some tokens as slices of one buffer, an empty cache, and a slot for each token but one."""

    def __init__(self, gpu: Gpu, head_dim: int, rot_dim: int, dtype: torch.dtype) -> None:
        self.gpu = gpu
        self.qkv = gpu.randn(9, 9, head_dim, dtype=dtype)
        self.q, self.k, self.v = self.qkv[:, :5], self.qkv[:, 5:7], self.qkv[:, 7:]
        self.positions = positions_of(gpu, 9)
        self.table = make_table(rot_dim).to(gpu.device)
        self.slots = torch.randperm(20)[:9].to(gpu.device)
        self.slots[3] = -1
        size = (5, 2, 4, head_dim)
        self.k_cache, self.v_cache = (torch.full(size, -7.0, dtype=dtype).to(gpu.device) for _ in range(2))

    def run(self) -> None:
        cache = (self.k_cache, self.v_cache, self.slots)
        self.gpu.ops.rotary_kv_write(self.q, self.k, self.v, self.positions, self.table, *cache)

    def run_apart(self) -> None:
        self.gpu.ops.rotary_embedding(self.q, self.k, self.positions, self.table)
        self.gpu.ops.kv_write(self.k, self.v, self.k_cache, self.v_cache, self.slots)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("head_dim", "rot_dim"), SHAPES)
def test_rotation_matches_reference(
    gpu: Gpu, head_dim: int, rot_dim: int, index_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    table, positions = make_table(rot_dim).to(gpu.device), positions_of(gpu, 9, index_dtype)
    q, k = gpu.randn(9, 5, head_dim, dtype=dtype), gpu.randn(9, 2, head_dim, dtype=dtype)
    expected = [(rotate(x.double(), positions, table), rotate(x, positions, table)) for x in (q, k)]
    gpu.ops.rotary_embedding(q, k, positions, table)
    for ours, (exact, torchs) in zip((q, k), expected, strict=True):
        assert_as_exact_as_torch(ours, torchs, exact)


@pytest.mark.parametrize("head_dim", [24, 128])
def test_rotation_does_not_depend_on_the_batch_nor_on_where_a_row_lies(
    gpu: Gpu, head_dim: int, dtype: torch.dtype
) -> None:
    table, positions = make_table(head_dim).to(gpu.device), positions_of(gpu, 40)
    qkv = gpu.randn(40, 7, head_dim, dtype=dtype)
    shifted = torch.empty(7 * head_dim + 1, dtype=dtype, device=gpu.device)[1:].view(1, 7, head_dim)
    alone = [qkv[7:8].clone(), shifted.copy_(qkv[7:8])]
    gpu.ops.rotary_embedding(qkv[:, :4], qkv[:, 4:6], positions, table)
    for row in alone:
        gpu.ops.rotary_embedding(row[:, :4], row[:, 4:6], positions[7:8], table)
        assert_same_bits(row, qkv[7:8])


@pytest.mark.parametrize(("head_dim", "rot_dim"), SHAPES)
def test_rotation_gives_the_bits_of_the_cpu(gpu: Gpu, head_dim: int, rot_dim: int) -> None:
    table, positions = make_table(rot_dim), positions_of(gpu, 9).cpu()
    for dtype in (torch.float32, torch.bfloat16):
        expected = torch.randn(9, 7, head_dim).to(dtype)
        qkv = expected.to(gpu.device, copy=True)
        ops.rotary_embedding(expected[:, :5], expected[:, 5:], positions, table)
        gpu.ops.rotary_embedding(qkv[:, :5], qkv[:, 5:], positions.to(gpu.device), table.to(gpu.device))
        assert_same_bits(qkv.cpu(), expected)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("head_dim", [24, 128, 7])
def test_kv_write_fills_the_slots_and_skips_those_that_are_none(
    gpu: Gpu, head_dim: int, index_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    qkv = gpu.randn(5, 6, head_dim, dtype=dtype)
    k, v = qkv[:, 2:4], qkv[:, 4:6]
    k_cache, v_cache = gpu.randn(2, 5, 2, 3, head_dim, dtype=dtype)
    expected_k, expected_v = k_cache.clone(), v_cache.clone()
    # The last is past the cache: on the device nobody can refuse it.
    slots = [14, -1, 0, 7, 15]
    for token, slot in enumerate(slots):
        if 0 <= slot < 15:
            expected_k[slot // 3, :, slot % 3] = k[token]
            expected_v[slot // 3, :, slot % 3] = v[token]
    gpu.ops.kv_write(k, v, k_cache, v_cache, torch.tensor(slots, dtype=index_dtype).to(gpu.device))
    assert_same_bits(k_cache, expected_k)
    assert_same_bits(v_cache, expected_v)


@pytest.mark.parametrize(("head_dim", "rot_dim"), SHAPES)
def test_rotation_with_the_write_gives_the_bits_of_both_apart(
    gpu: Gpu, head_dim: int, rot_dim: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    fused = Step(gpu, head_dim, rot_dim, dtype)
    torch.manual_seed(1)
    apart = Step(gpu, head_dim, rot_dim, dtype)
    before = fused.v.clone()
    fused.run()
    apart.run_apart()
    assert_same_bits(fused.q, apart.q)
    assert_same_bits(fused.v, before)
    assert_same_bits(fused.k_cache, apart.k_cache)
    assert_same_bits(fused.v_cache, apart.v_cache)


@pytest.mark.parametrize("position", [-1, MAX_POS])
def test_a_position_outside_the_table_makes_its_own_row_nan(gpu: Gpu, position: int) -> None:
    step, expected = (Step(gpu, 64, 64, torch.float32) for _ in range(2))
    expected.q.copy_(step.q)
    step.positions[2] = position
    expected.positions.copy_(step.positions)
    expected.positions[2] = 0
    step.run()
    expected.run()
    assert step.q[2].isnan().all()
    slot = step.slots[2].item()
    assert step.k_cache[slot // 4, :, slot % 4].isnan().all()
    others = [t for t in range(9) if t != 2]
    assert_same_bits(step.q[others], expected.q[others])
    assert step.k_cache.isnan().sum() == 2 * 64


def test_arguments_are_checked(gpu: Gpu) -> None:
    step = Step(gpu, 64, 64, torch.float32)
    step.k_cache = step.k_cache[:, :, :, :32]
    with pytest.raises(ValueError, match="k_cache: expected size 64 in dimension 3"):
        step.run()
    step = Step(gpu, 64, 64, torch.float32)
    step.v = step.v.half()
    with pytest.raises(TypeError, match="v: dtype differs"):
        step.run()
