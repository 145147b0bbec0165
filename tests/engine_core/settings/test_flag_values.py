"""Counts and sizes as people type them."""

from __future__ import annotations

import argparse

import pytest

from splitserve.engine_core.settings.flag_values import format_bytes, parse_bytes, parse_count


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("0", 0), ("4096", 4096), ("-3", -3), ("4k", 4000), ("4K", 4096), ("32K", 32768)),
        *(("1.5k", 1500), ("1.5K", 1536), ("25.6k", 25600), ("2m", 2_000_000), ("1_000", 1000)),
    ],
)
def test_counts_may_have_units(text: str, expected: int) -> None:
    assert parse_count(text) == expected


@pytest.mark.parametrize("text", ["", "k", "1.5", "4x", "4 k", "0x10", "1.0001k", "1e3", "\u0661", "9" * 999])
def test_a_count_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("0", 0), ("4096", 4096), ("1k", 1024), ("512M", 2**29), ("4G", 2**32), ("4GiB", 2**32)),
        *(("1t", 2**40), ("0.5G", 2**29), ("1.5k", 1536)),
    ],
)
def test_sizes_may_have_units(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "1.5", "G", "4X", "0x10", "4 G", "\u0661", ".5G"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0"), (1536, "1536"), (2**20, "1M"), (3 * 2**19, "1536K"), (2**40, "1T")]
)
def test_a_size_is_written_as_it_is_read(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text
    assert parse_bytes(text) == num_bytes
