"""Packed columns come back as they were, and those of a wrong length are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.errors import ProtocolError
from engine_core.ipc.codec import (
    pack_int32,
    pack_int64,
    read_int32,
    read_int64,
    unpack_int32,
    unpack_int64,
)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=70))
def test_a_column_of_int32_is_the_same_either_way(values: list[int]) -> None:
    column = pack_int32(values)
    assert list(read_int32(column)) == unpack_int32(column).tolist() == values


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=70))
def test_a_column_of_int64_is_the_same_either_way(values: list[int]) -> None:
    column = pack_int64(values)
    assert list(read_int64(column)) == unpack_int64(column).tolist() == values


def test_a_column_is_little_endian_on_every_machine() -> None:
    assert read_int32(b"\x01\x02\x00\x00") == (0x201,)
    assert read_int64(b"\x01\x02" + bytes(6)) == (0x201,)


@pytest.mark.parametrize("read", [read_int32, unpack_int32])
@pytest.mark.parametrize("num_bytes", [1, 3, 5, 9])
def test_a_cut_column_of_int32_is_refused(read, num_bytes: int) -> None:
    with pytest.raises(ProtocolError, match=f"a column of int32 has {num_bytes} bytes"):
        read(bytes(num_bytes))


@pytest.mark.parametrize("read", [read_int64, unpack_int64])
@pytest.mark.parametrize("num_bytes", [1, 4, 12])
def test_a_cut_column_of_int64_is_refused(read, num_bytes: int) -> None:
    with pytest.raises(ProtocolError, match=f"a column of int64 has {num_bytes} bytes"):
        read(bytes(num_bytes))
