"""kv_write and embedding: copies to and from indexed rows."""

import pytest
import torch

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.matrix import VocabularyPart
from splitserve.worker.ops.packed_weight import PackedWeight
from tests.worker.ops.helpers import assert_same_bits


def interleaved(k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rearrange plain caches [N, heads, block_size, D] into the layout of paged_attention."""
    pair = 4 // k.element_size()
    blocks, heads, size, dim = k.shape
    keys = k.view(blocks, heads, size, dim // pair, pair).transpose(2, 3)
    values = v.view(blocks, heads, size // pair, pair, dim).transpose(3, 4)
    return keys.reshape(k.shape), values.reshape(v.shape)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_writes_each_token_to_its_slot_and_skips_negative_ones(
    index_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    qkv = torch.randn(5, 6, 24).to(dtype)
    k, v = qkv[:, 2:4], qkv[:, 4:6]
    k_cache, v_cache = torch.zeros(5, 2, 6, 24, dtype=dtype), torch.zeros(5, 2, 6, 24, dtype=dtype)
    plain_k, plain_v = k_cache.clone(), v_cache.clone()
    slots = [29, -1, 0, 7, 6]
    for token, slot in enumerate(slots):
        if slot >= 0:
            plain_k[slot // 6, :, slot % 6] = k[token]
            plain_v[slot // 6, :, slot % 6] = v[token]
    ops.kv_write(k, v, k_cache, v_cache, torch.tensor(slots, dtype=index_dtype))
    expected_k, expected_v = interleaved(plain_k, plain_v)
    assert_same_bits(k_cache, expected_k)
    assert_same_bits(v_cache, expected_v)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_tokens_that_share_a_pair_are_both_written_on_any_number_of_threads(
    threads: int, dtype: torch.dtype
) -> None:
    k, v = torch.randn(2, 512, 4, 32).to(dtype).unbind()
    k_cache, v_cache = caches = torch.zeros(2, 32, 4, 16, 32, dtype=dtype).unbind()
    ops.set_num_threads(threads)
    ops.kv_write(k, v, k_cache, v_cache, torch.arange(512))
    plain = [x.view(32, 16, 4, 32).transpose(1, 2).contiguous() for x in (k, v)]
    for cache, expected in zip(caches, interleaved(*plain), strict=True):
        assert_same_bits(cache, expected)


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


def test_a_part_of_the_vocabulary_gives_zeros_for_the_tokens_of_the_rest(dtype: torch.dtype) -> None:
    weight, ids = torch.randn(70, 33).to(dtype), torch.tensor([3, 69, 20, 40, 19, 41], dtype=torch.int32)
    out = torch.full((6, 33), torch.nan, dtype=dtype)
    ops.embedding(out, ids, PackedWeight.of(weight[20:41]), VocabularyPart(20, 70))
    expected = weight[ids.long()]
    # 20 and 40 are the first and the last that it holds.
    expected[[0, 1, 4, 5]] = 0
    assert_same_bits(out, expected)


@pytest.mark.parametrize("first", [-1, 1])
def test_a_part_outside_the_vocabulary_is_refused(first: int) -> None:
    weight = PackedWeight.of(torch.randn(20, 4))
    with pytest.raises(ValueError, match=f"first: rows {first} to {first + 20} are not all within 20"):
        ops.embedding(torch.empty(1, 4), torch.tensor([0]), weight, VocabularyPart(first, 20))


@pytest.mark.parametrize("token_id", [-1, 20])
def test_embedding_refuses_an_id_outside_the_vocabulary(token_id: int) -> None:
    with pytest.raises(ValueError, match="token_ids"):
        ops.embedding(torch.empty(1, 4), torch.tensor([token_id]), PackedWeight.of(torch.randn(20, 4)))
