"""What an engine leaves of its adapters for a successor at its address, and what is believed of it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from splitserve.engine_core.ipc.wire import AdapterInfo
from splitserve.engine_core.kept.adapters import KeptAdapters

ADAPTERS = [AdapterInfo("a", "/adapters/a", "ab" * 32), AdapterInfo("b", "/adapters/b")]


def kept(address: str) -> KeptAdapters:
    made = KeptAdapters.of(address)
    assert made is not None
    return made


@pytest.mark.parametrize("address", ["ipc://{}/engine.sock", "tcp://127.0.0.1:5555"])
def test_a_successor_at_the_address_reads_what_was_written(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    first = kept(address.format(tmp_path))
    assert first.read() == []
    first.write(ADAPTERS[:1])
    first.write(ADAPTERS)
    assert kept(address.format(tmp_path)).read() == ADAPTERS
    (path,) = (each for each in tmp_path.rglob("*adapters*"))
    assert path.stat().st_mode & 0o777 == 0o600
    first.write([])
    assert os.listdir(tmp_path) == []


def test_engines_at_other_addresses_have_their_own(tmp_path: Path) -> None:
    kept(f"ipc://{tmp_path}/one.sock").write(ADAPTERS)
    assert kept(f"ipc://{tmp_path}/two.sock").read() == []


def test_an_address_that_no_successor_can_have_has_none() -> None:
    assert KeptAdapters.of("tcp://127.0.0.1:0") is None
    assert KeptAdapters.of("tcp://127.0.0.1:*") is None


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[" * 60000, b'[["a", 1]]', None])
def test_what_is_damaged_counts_as_nothing(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "engine.sock.adapters"
    path.write_bytes(msgspec.json.encode(ADAPTERS)[:-5] if content is None else content)
    assert kept(f"ipc://{tmp_path}/engine.sock").read() == []
