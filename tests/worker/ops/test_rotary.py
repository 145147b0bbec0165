"""rotary_embedding."""

import pytest
import torch
from torch import Tensor

from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits
from worker import ops


def make_table(rot_dim: int, max_pos: int = 50) -> Tensor:
    angles = torch.arange(max_pos)[:, None] * 10000.0 ** (-torch.arange(0, rot_dim, 2) / rot_dim)
    return torch.cat([angles.cos(), angles.sin()], dim=1).float()


def rotate(x: Tensor, positions: Tensor, table: Tensor) -> Tensor:
    half = table.shape[1] // 2
    cos, sin = table[positions.long()].to(x.dtype)[:, None].split(half, dim=-1)
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("head_dim", "rot_dim"), [(64, 64), (24, 24), (80, 32), (10, 6)])
def test_matches_reference(head_dim: int, rot_dim: int, index_dtype: torch.dtype, dtype: torch.dtype) -> None:
    table = make_table(rot_dim)
    positions = torch.randint(0, 50, (9,), dtype=index_dtype)
    q, k = torch.randn(9, 5, head_dim).to(dtype), torch.randn(9, 2, head_dim).to(dtype)
    expected = [(rotate(x.double(), positions, table), rotate(x, positions, table)) for x in (q, k)]
    ops.rotary_embedding(q, k, positions, table)
    for ours, (exact, torchs) in zip((q, k), expected, strict=True):
        assert_as_exact_as_torch(ours, torchs, exact)


def test_works_on_slices_and_does_not_depend_on_batch_or_threads(dtype: torch.dtype) -> None:
    table = make_table(32)
    positions = torch.randint(0, 50, (201,))
    qkv = torch.randn(201, 8 * 32).to(dtype)
    alone = qkv[7:8].clone()
    ops.set_num_threads(2)
    ops.rotary_embedding(qkv[:, :128].view(201, 4, 32), qkv[:, 128:192].view(201, 2, 32), positions, table)
    ops.set_num_threads(1)
    ops.rotary_embedding(
        alone[:, :128].view(1, 4, 32), alone[:, 128:192].view(1, 2, 32), positions[7:8], table
    )
    assert_same_bits(alone, qkv[7:8])


@pytest.mark.parametrize("position", [-1, 50])
def test_refuses_a_position_outside_the_table(position: int) -> None:
    q = torch.randn(1, 2, 8)
    with pytest.raises(ValueError, match="positions"):
        ops.rotary_embedding(q, q.clone(), torch.tensor([position]), make_table(8))


@pytest.mark.parametrize(("head_dim", "rot_dim"), [(64, 64), (10, 6)])
def test_rotation_with_the_write_gives_the_bits_of_both_apart(
    head_dim: int, rot_dim: int, dtype: torch.dtype
) -> None:
    table, positions = make_table(rot_dim), torch.randint(0, 50, (9,))
    slots = torch.randperm(20)[:9].int()
    slots[3] = -1
    fused, apart = (torch.randn(9, 9, head_dim).to(dtype) for _ in range(2))
    apart.copy_(fused)
    caches = [torch.zeros(2, 5, 2, 4, head_dim, dtype=dtype) for _ in range(2)]
    q, k, v = fused.split([5, 2, 2], dim=1)
    ops.rotary_kv_write(q, k, v, positions, table, *caches[0], slots)
    turned_q, turned_k, v = apart.split([5, 2, 2], dim=1)
    ops.rotary_embedding(turned_q, turned_k, positions, table)
    ops.kv_write(turned_k, v, *caches[1], slots)
    assert_same_bits(q, turned_q)
    assert_same_bits(caches[0], caches[1])


def test_rotation_with_the_write_checks_before_it_writes() -> None:
    q, k, cache = torch.randn(1, 2, 8), torch.randn(1, 1, 8), torch.zeros(2, 1, 4, 8)
    before = q.clone()
    with pytest.raises(ValueError, match="slot_mapping: 8 is outside"):
        ops.rotary_kv_write(
            q, k, k.clone(), torch.zeros(1).int(), make_table(8), cache, cache.clone(), torch.tensor([8])
        )
    assert_same_bits(q, before)
