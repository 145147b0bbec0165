"""WholeOps.rotate: the same bits as on the way into a cache, and what is refused."""

from __future__ import annotations

import pytest
import torch

from splitserve.worker.ops.cpu import ops
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits

MAX_POS = 50


def table(rot_dim: int) -> torch.Tensor:
    angles = torch.outer(torch.arange(MAX_POS, dtype=torch.float32), torch.rand(rot_dim // 2))
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def rotated(x: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """By torch, in the precision of x and the table."""
    half = cos_sin.shape[1] // 2
    cosine, sine = cos_sin[positions.long()][:, None].split(half, dim=-1)
    first, second, rest = x.tensor_split((half, 2 * half), dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine, rest), dim=-1)


@pytest.mark.parametrize(("head_dim", "rot_dim"), [(8, 8), (64, 64), (40, 24)])
def test_it_matches_the_reference_and_the_way_into_a_cache(
    head_dim: int, rot_dim: int, dtype: torch.dtype
) -> None:
    x, positions = torch.randn(9, 5, head_dim).to(dtype), torch.randint(0, MAX_POS, (9,), dtype=torch.int32)
    cos_sin, ours, cached = table(rot_dim), x.clone(), x.clone()
    ops.whole.rotate(ours, positions, cos_sin)
    exact = rotated(x.double(), positions, cos_sin.double())
    assert_as_exact_as_torch(ours, rotated(x.float(), positions, cos_sin).to(dtype), exact)
    cache, keys = torch.zeros(1, 5, 16, head_dim, dtype=dtype), x.clone()
    nowhere = torch.full((9,), -1, dtype=torch.int32)
    ops.rotary_kv_write(cached, keys, x.clone(), positions, cos_sin, cache, cache.clone(), nowhere)
    assert_same_bits(ours, cached)


def test_a_token_has_the_same_bits_alone_and_in_a_slice(dtype: torch.dtype) -> None:
    fused, positions, cos_sin = torch.randn(300, 12, 32).to(dtype), torch.arange(300) % MAX_POS, table(32)
    whole = fused[:, :4].clone()
    ops.set_num_threads(2)
    ops.whole.rotate(whole, positions, cos_sin)
    ops.set_num_threads(1)
    for token in (0, 57, 299):
        ops.whole.rotate(fused[token : token + 1, :4], positions[token : token + 1], cos_sin)
        assert_same_bits(fused[token, :4], whole[token])


def test_wrong_arguments_are_refused() -> None:
    x, positions, cos_sin = torch.zeros(3, 2, 8), torch.tensor([0, 1, 2]), table(8)
    for changed, text in (
        ((x, torch.tensor([0, MAX_POS, 2]), cos_sin), "is outside cos_sin's 50 rows"),
        ((x, torch.tensor([0, -1, 2]), cos_sin), "is outside cos_sin's"),
        ((x, positions[:2], cos_sin), "positions: expected size 3"),
        ((x, positions, table(16)), "is smaller than rot_dim"),
        ((x, positions, torch.zeros(MAX_POS, 7)), "rot_dim must be even"),
        ((x[0], positions, cos_sin), "x: expected 3 dimensions"),
    ):
        with pytest.raises(ValueError, match=text):
            ops.whole.rotate(*changed)
