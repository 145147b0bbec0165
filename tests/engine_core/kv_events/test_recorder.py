"""Which events the KV manager's actions become, decoded by structs of a router's own."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from splitserve.engine_core.kv_cache.block_hash import extend_chain
from splitserve.engine_core.kv_cache.costs import KVCosts, nothing_known
from splitserve.engine_core.kv_cache.manager import KVCacheManager
from splitserve.engine_core.kv_cache.offload import Offload
from splitserve.engine_core.kv_cache.prefix_cache import PrefixCache
from splitserve.engine_core.kv_cache.window import bound_rows
from splitserve.engine_core.kv_events.format import MEDIUM_GPU, encode_batch, external_hash
from splitserve.engine_core.kv_events.recorder import KVEventRecorder
from splitserve.engine_core.request import Request
from tests.engine_core.kv_events.router import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, Router
from tests.engine_core.requests import make_request


class Cache:
    """A manager of 4-token blocks with a recorder, and a router that hears of it."""

    def __init__(self, num_blocks: int = 8, num_host_blocks: int = 0) -> None:
        self.recorder = KVEventRecorder(4, has_offload_tier=num_host_blocks > 0)
        costs = KVCosts(nothing_known, 0, 4)
        offload = Offload(num_blocks, num_host_blocks, costs, kv_events=self.recorder)
        self.router = Router()
        prefixes = PrefixCache(num_blocks, b"x" * 32, offload if num_host_blocks else None, self.recorder)
        self.prefixes = prefixes
        self.manager = KVCacheManager(prefixes, bound_rows(num_blocks, 4, 100), max_num_seqs=4)
        self.publish()

    def compute(self, row: int, request: Request) -> None:
        assert self.manager.admit(row, request, 0) is not None
        self.index([row], [request])

    def index(self, rows: list[int], requests: list[Request]) -> None:
        computed = np.array([request.num_stored_tokens for request in requests])
        self.manager.indexer.index_full_blocks(np.array(rows), requests, computed)

    def publish(self) -> EventBatch:
        return self.router.hear(encode_batch(self.recorder.take()))


def hashes(request: Request) -> list[int]:
    return [external_hash(block_hash) for block_hash in request.block_hashes]


def test_a_recorder_begins_by_clearing_what_was_heard_of_an_earlier_engine() -> None:
    payload = encode_batch(KVEventRecorder(4).take())
    assert Router().hear(payload).events == [AllBlocksCleared()]
    _ts, events, rank = msgspec.msgpack.decode(payload)
    assert (events, rank) == ([{"type": "AllBlocksCleared"}], 0)


def test_the_blocks_of_a_prompt_are_one_event() -> None:
    cache = Cache()
    request = make_request(range(1, 10))
    cache.compute(0, request)
    (event,) = cache.publish().events
    assert event == BlockStored(hashes(request), None, [1, 2, 3, 4, 5, 6, 7, 8], 4, None, "GPU", None)


def test_a_payload_is_what_vllm_publishes() -> None:
    cache = Cache()
    request = make_request([1, 2, 3, 4])
    cache.compute(0, request)
    _ts, events, _rank = msgspec.msgpack.decode(encode_batch(cache.recorder.take()))
    assert events == [
        {
            "type": "BlockStored",
            "block_hashes": [int.from_bytes(request.block_hashes[0][24:], "big")],
            "parent_block_hash": None,
            "token_ids": [1, 2, 3, 4],
            "block_size": 4,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        }
    ]


def test_a_later_block_names_its_parent() -> None:
    cache = Cache()
    first = make_request([1, 2, 3, 4, 5])
    cache.compute(0, first)
    cache.publish()
    second = make_request([1, 2, 3, 4, 5, 6, 7, 8, 9])
    cache.compute(1, second)
    (event,) = cache.publish().events
    assert isinstance(event, BlockStored)
    assert (event.parent_block_hash, event.block_hashes) == (hashes(first)[0], hashes(second)[1:])
    assert event.token_ids == [5, 6, 7, 8]


def test_what_another_row_has_stored_already_is_left_out() -> None:
    cache = Cache()
    first, second = make_request([1, 2, 3, 4]), make_request([1, 2, 3, 4, 5, 6, 7, 8])
    third = make_request([1, 2, 3, 4, 5, 6, 7, 8])
    for row, request in enumerate((first, second, third)):
        cache.manager.admit(row, request, 0)
    cache.index([0, 1, 2], [first, second, third])
    events = cache.publish().events
    assert [event.token_ids for event in events if isinstance(event, BlockStored)] == [
        [1, 2, 3, 4],
        [5, 6, 7, 8],
    ]


def test_a_gap_between_stored_blocks_makes_two_events() -> None:
    cache = Cache()
    request = make_request(range(1, 13))
    cache.manager.admit(0, request, 0)
    # The middle block is served by another one already.
    extend_chain(request.block_hashes, request.namespace, request.token_ids, 2, 16)
    assert cache.manager.cache.index.insert([request.block_hashes[1]], [7]) == [7]
    cache.index([0], [request])
    events = cache.publish().events
    first, middle, last = hashes(request)
    assert events == [
        BlockStored([first], None, [1, 2, 3, 4], 4, None, "GPU", None),
        BlockStored([last], middle, [9, 10, 11, 12], 4, None, "GPU", None),
    ]


def test_evictions_of_one_plan_are_one_event() -> None:
    cache = Cache(num_blocks=3)
    request = make_request(range(1, 13))
    cache.compute(0, request)
    cache.publish()
    cache.manager.free(0)
    cache.manager.admit(1, make_request([90] * 8), 0)
    cache.manager.free(1)
    cache.manager.admit(1, make_request([91] * 12), 0)
    # The end of the sequence is evicted first.
    assert cache.publish().events == [BlockRemoved(hashes(request)[::-1], "GPU")]


def test_a_reset_clears_and_swallows_what_came_before() -> None:
    cache = Cache()
    cache.compute(0, make_request([1, 2, 3, 4]))
    cache.manager.reset_prefix_cache()
    assert cache.publish().events == [AllBlocksCleared()]
    assert cache.router.hashes("GPU") == set()


def test_nothing_happened_makes_no_event() -> None:
    assert Cache().recorder.take() == []


@pytest.mark.parametrize(
    ("tenant", "salt", "keys"),
    [("", "", None), ("", "s", ("s",)), ("t", "", ("", "t")), ("t", "s", ("s", "t"))],
)
def test_salt_and_tenant_stand_beside_the_first_block(
    tenant: str, salt: str, keys: tuple[str, ...] | None
) -> None:
    cache = Cache()
    request = make_request(range(1, 10))
    request.tenant, request.cache_salt = tenant, salt
    cache.compute(0, request)
    (event,) = cache.publish().events
    assert isinstance(event, BlockStored)
    assert event.extra_keys == (None if keys is None else [keys, None])
    assert cache.router.num_cached_blocks(range(1, 9), 4, keys or ()) == 2
    assert cache.router.num_cached_blocks(range(1, 9), 4, ("other",)) == 0


def test_a_block_saved_to_the_offload_tier_is_told_of_whole_before_it_leaves_the_pool() -> None:
    cache = Cache(num_blocks=3, num_host_blocks=3)
    request = make_request(range(1, 10))
    request.cache_salt = "s"
    cache.compute(0, request)
    cache.publish()
    cache.manager.free(0)
    cache.manager.admit(1, make_request([90] * 12), 0)
    first, second = hashes(request)
    assert cache.publish().events == [
        BlockStored([second], first, [5, 6, 7, 8], 4, None, "CPU", None),
        BlockStored([first], None, [1, 2, 3, 4], 4, None, "CPU", None, [("s",)]),
        BlockRemoved([second, first], "GPU"),
    ]


def test_what_the_offload_tier_gives_up_is_removed_there() -> None:
    cache = Cache(num_blocks=2, num_host_blocks=1)
    request = make_request(range(1, 9))
    cache.compute(0, request)
    cache.publish()
    cache.manager.free(0)
    cache.manager.admit(1, make_request([90] * 8), 0)
    first, second = hashes(request)
    events = cache.publish().events
    assert events[1] == BlockRemoved([second], "CPU")
    assert (cache.router.hashes("CPU"), cache.router.hashes("GPU")) == ({first}, set())
    assert set(cache.recorder._blocks) == {request.block_hashes[0]}, "the others are forgotten"


def test_a_block_loaded_from_the_offload_tier_is_stored_in_the_pool_again() -> None:
    cache = Cache(num_blocks=3, num_host_blocks=4)
    request = make_request(range(1, 10))
    cache.compute(0, request)
    cache.manager.free(0)
    cache.manager.admit(1, make_request([90] * 12), 0)
    cache.manager.free(1)
    cache.publish()
    cache.compute(0, make_request(range(1, 10)))
    assert cache.publish().events == [
        BlockStored(hashes(request), None, [1, 2, 3, 4, 5, 6, 7, 8], 4, None, "GPU", None)
    ]
    assert cache.router.hashes("CPU") == set(hashes(request))
    cache.manager.reset_prefix_cache()
    assert cache.publish().events == [AllBlocksCleared()]
    assert cache.recorder._blocks == {}


def test_removals_of_one_medium_only_are_joined() -> None:
    cache = Cache(num_blocks=2, num_host_blocks=1)
    request = make_request(range(1, 9))
    cache.compute(0, request)
    cache.publish()
    cache.manager.free(0)
    for row in (1, 2):
        cache.manager.admit(row, make_request([90] * 4), 0)
    first, second = hashes(request)
    assert [event for event in cache.publish().events if isinstance(event, BlockRemoved)] == [
        BlockRemoved([second], "GPU"),
        BlockRemoved([second], "CPU"),
        BlockRemoved([first], "GPU"),
    ]


@pytest.mark.parametrize("num_host_blocks", [0, 8])
def test_nothing_is_said_of_blocks_that_a_predecessor_left(num_host_blocks: int) -> None:
    kept, new = make_request(range(1, 10)), make_request(range(20, 52))
    before = Cache()
    before.compute(0, kept)
    cache = Cache(num_host_blocks=num_host_blocks)
    cache.prefixes.restore(dict(enumerate(kept.block_hashes)))
    # It takes all blocks, so that those kept are evicted, and with a tier saved.
    cache.compute(0, new)
    told = cache.publish().events
    assert [type(event) for event in told] == [BlockStored]
    assert set(cache.router.stored[MEDIUM_GPU]) == set(hashes(new))
