"""kv_write, alone and with the norms and the rotation of queries and keys, on a GPU."""

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops
from tests.gpu.conftest import Gpu
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits
from tests.worker.ops.turning import make_table, turned

# Chunks of whole and of partial vectors; a part of the head unturned.
SHAPES = [(64, 64), (128, 128), (24, 24), (80, 32), (10, 6), (64, 48), (256, 256)]
MAX_POS = 50
EPS = 1e-5


class Step:
    """QKV of some tokens as slices of one buffer, an empty cache, and a slot for each token but one."""

    def __init__(
        self,
        gpu: Gpu,
        head_dim: int,
        rot_dim: int,
        dtype: torch.dtype,
        has_norms: bool = False,
        tokens: int = 9,
    ) -> None:
        self.gpu = gpu
        self.qkv = gpu.randn(tokens, 9, head_dim, dtype=dtype)
        self.q, self.k, self.v = self.qkv.split([5, 2, 2], dim=1)
        self.positions = torch.randint(0, MAX_POS, (tokens,), dtype=torch.int32).to(gpu.device)
        self.table = make_table(rot_dim, MAX_POS).to(gpu.device)
        self.slots = torch.randperm(4 * tokens)[:tokens].to(gpu.device)
        self.slots[3] = -1
        self.norms: tuple[Tensor, Tensor] | tuple[None, None] = (None, None)
        if has_norms:
            self.norms = (gpu.randn(head_dim, dtype=dtype), gpu.randn(head_dim, dtype=dtype))
        size = (tokens, 2, 4, head_dim)
        self.k_cache, self.v_cache = (torch.full(size, -7.0, dtype=dtype).to(gpu.device) for _ in range(2))

    def run(self, offset: float = 0.0) -> None:
        cache = (self.k_cache, self.v_cache, self.slots)
        turn = (self.positions, self.table)
        q_norm, k_norm = self.norms
        self.gpu.ops.rotary_kv_write(self.q, self.k, self.v, *turn, *cache, q_norm, k_norm, EPS, offset)

    def written(self, cache: Tensor) -> Tensor:
        """What the cache holds of the tokens that have a slot, [tokens, heads, D]."""
        slots = self.slots[self.slots >= 0]
        return cache[slots // 4, :, slots % 4]


@pytest.fixture(params=[False, True], ids=["plain", "norms"])
def has_norms(request: pytest.FixtureRequest) -> bool:
    return request.param


def test_an_offset_is_added_to_the_weights_of_the_norms(gpu: Gpu) -> None:
    step = Step(gpu, 80, 32, torch.float32, has_norms=True)
    q = step.q.clone()
    step.run(offset=1.0)
    weight = step.norms[0]
    assert weight is not None
    torchs = turned(q, step.positions, step.table, 1 + weight, EPS)
    exact = turned(q.double(), step.positions, step.table, 1 + weight.double(), EPS)
    assert_as_exact_as_torch(step.q, torchs, exact)


@pytest.mark.parametrize(("head_dim", "rot_dim"), SHAPES)
def test_queries_and_written_keys_match_the_reference(
    gpu: Gpu, head_dim: int, rot_dim: int, has_norms: bool, dtype: torch.dtype
) -> None:
    step = Step(gpu, head_dim, rot_dim, dtype, has_norms)
    before = step.qkv.clone()
    q, k, v = before.split([5, 2, 2], dim=1)
    step.run()
    for x, norm, ours in ((q, step.norms[0], step.q), (k, step.norms[1], None)):
        torchs = turned(x, step.positions, step.table, norm, EPS)
        exact = turned(x.double(), step.positions, step.table, norm, EPS)
        if ours is None:
            kept = step.slots >= 0
            ours, torchs, exact = step.written(step.k_cache), torchs[kept], exact[kept]
        assert_as_exact_as_torch(ours, torchs, exact)
    assert_same_bits(step.qkv[:, 5:], before[:, 5:])
    assert_same_bits(step.written(step.v_cache), v[step.slots >= 0])
    assert (step.k_cache == -7).all(-1).sum() == step.k_cache[..., 0].numel() - 8 * 2
    assert (step.v_cache == -7).all(-1).sum() == step.v_cache[..., 0].numel() - 8 * 2


@pytest.mark.parametrize("head_dim", [24, 128])
def test_a_row_does_not_depend_on_the_batch_nor_on_where_it_lies(
    gpu: Gpu, head_dim: int, has_norms: bool, dtype: torch.dtype
) -> None:
    step = Step(gpu, head_dim, head_dim, dtype, has_norms, tokens=40)
    shifted = torch.empty(9 * head_dim + 1, dtype=dtype, device=gpu.device)[1:].view(1, 9, head_dim)
    alone = [step.qkv[7:8].clone(), shifted.copy_(step.qkv[7:8])]
    step.run()
    slot = int(step.slots[7])
    for row in alone:
        q, k, v = row.split([5, 2, 2], dim=1)
        turn = (step.positions[7:8], step.table)
        cache = (torch.zeros_like(step.k_cache), torch.zeros_like(step.v_cache))
        q_norm, k_norm = step.norms
        gpu.ops.rotary_kv_write(q, k, v, *turn, *cache, step.slots[7:8], q_norm, k_norm, EPS)
        assert_same_bits(q, step.q[7:8])
        assert_same_bits(cache[0][slot // 4, :, slot % 4], step.k_cache[slot // 4, :, slot % 4])


@pytest.mark.parametrize(("head_dim", "rot_dim"), SHAPES)
def test_rotation_gives_the_bits_of_the_cpu(gpu: Gpu, head_dim: int, rot_dim: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        step = Step(gpu, head_dim, rot_dim, dtype)
        q, k, v = step.qkv.cpu().clone().split([5, 2, 2], dim=1)
        step.run()
        k_cache, v_cache = torch.zeros(2, *step.k_cache.shape, dtype=dtype)
        turn = (step.positions.cpu(), step.table.cpu())
        ops.rotary_kv_write(q, k, v, *turn, k_cache, v_cache, step.slots.cpu())
        assert_same_bits(step.q.cpu(), q)


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
    slot = int(step.slots[2])
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
