"""kv_write and embedding: plain copies to and from indexed rows."""

import pytest
import torch

from tests.worker.ops.helpers import assert_same_bits
from worker import ops
from worker.packed_weight import PackedWeight


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_writes_each_token_to_its_slot_and_skips_negative_ones(
    index_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    qkv = torch.randn(4, 6, 24).to(dtype)
    k, v = qkv[:, 2:4], qkv[:, 4:6]
    k_cache, v_cache = torch.zeros(5, 2, 3, 24, dtype=dtype), torch.zeros(5, 2, 3, 24, dtype=dtype)
    expected_k, expected_v = k_cache.clone(), v_cache.clone()
    slots = [14, -1, 0, 7]
    for token, slot in enumerate(slots):
        if slot >= 0:
            expected_k[slot // 3, :, slot % 3] = k[token]
            expected_v[slot // 3, :, slot % 3] = v[token]
    ops.kv_write(k, v, k_cache, v_cache, torch.tensor(slots, dtype=index_dtype))
    assert_same_bits(k_cache, expected_k)
    assert_same_bits(v_cache, expected_v)


def test_a_slot_past_the_cache_is_refused_before_anything_is_written() -> None:
    k, cache = torch.randn(2, 2, 8), torch.zeros(3, 2, 4, 8)
    with pytest.raises(ValueError, match="slot_mapping: 12 "):
        ops.kv_write(k, k, cache, cache.clone(), torch.tensor([0, 12]))
    assert cache.abs().sum() == 0


def test_embedding_copies_rows(dtype: torch.dtype) -> None:
    weight, ids = torch.randn(70, 33).to(dtype), torch.tensor([3, 69, 32, 0, 31, 3], dtype=torch.int32)
    out = torch.empty(6, 33, dtype=dtype)
    ops.embedding(out, ids, PackedWeight.of(weight))
    assert_same_bits(out, weight[ids.long()])


@pytest.mark.parametrize("token_id", [-1, 20])
def test_embedding_refuses_an_id_outside_the_vocabulary(token_id: int) -> None:
    with pytest.raises(ValueError, match="token_ids"):
        ops.embedding(torch.empty(1, 4), torch.tensor([token_id]), PackedWeight.of(torch.randn(20, 4)))
