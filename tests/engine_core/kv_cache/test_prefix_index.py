from __future__ import annotations

import pytest

from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.kv_cache.block_hash import extend_chain
from splitserve.engine_core.kv_cache.prefix_index import PrefixIndex

SECRET = b"x" * 32
BLOCK_BYTES = 8


def chain(namespace: bytes, token_ids: list[int]) -> list[bytes]:
    hashes: list[bytes] = []
    extend_chain(hashes, namespace, bytearray(pack_int32(token_ids)), len(token_ids) // 2, BLOCK_BYTES)
    return hashes


@pytest.mark.parametrize(
    "other",
    [("tenant", "other"), ("other", "salt"), ("tenants", "alt"), ("", "tenantsalt"), ("salt", "tenant")],
)
def test_tenant_and_salt_separate_namespaces(other: tuple[str, str]) -> None:
    index = PrefixIndex(SECRET)
    assert index.namespace("tenant", "salt") == index.namespace("tenant", "salt")
    assert index.namespace(*other) != index.namespace("tenant", "salt")


def test_namespaces_depend_on_the_secret() -> None:
    assert PrefixIndex(SECRET).namespace("a", "") != PrefixIndex(b"y" * 32).namespace("a", "")


def test_a_hash_names_the_whole_prefix() -> None:
    namespace = PrefixIndex(SECRET).namespace("", "")
    first = chain(namespace, [1, 2, 3, 4])
    assert chain(namespace, [1, 2, 3, 5])[0] == first[0]
    assert chain(namespace, [1, 2, 3, 5])[1] != first[1]
    # Same second block behind another first one.
    assert chain(namespace, [9, 2, 3, 4])[1] != first[1]


def test_a_chain_grows_from_where_it_ended() -> None:
    namespace = PrefixIndex(SECRET).namespace("", "")
    hashes = chain(namespace, [1, 2, 3, 4])
    extend_chain(hashes, namespace, bytearray(pack_int32([1, 2, 3, 4, 5, 6])), 3, BLOCK_BYTES)
    assert hashes == chain(namespace, [1, 2, 3, 4, 5, 6])


def test_the_first_block_of_a_prefix_serves_it() -> None:
    index = PrefixIndex(SECRET)
    assert index.insert([b"h"], [4]) == [4]
    assert index.insert([b"h", b"i"], [5, 6]) == [6]
    assert index.lookup(b"h") == 4
    index.forget(4)
    assert index.lookup(b"h") is None
    assert index.insert([b"h"], [5]) == [5]
    index.check_integrity()


def test_after_a_reset_the_same_tenant_has_another_namespace() -> None:
    index = PrefixIndex(SECRET)
    before = index.namespace("a", "")
    index.insert([b"h"], [1])
    index.reset()
    assert len(index) == 0
    assert index.lookup(b"h") is None
    assert index.namespace("a", "") != before
