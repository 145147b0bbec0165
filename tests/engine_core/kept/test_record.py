"""What the record of a group says is believed only if it is whole, and tells two groups apart."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from splitserve.engine_core.kept.processes import ProcessName
from splitserve.engine_core.kept.record import GroupRecord, fingerprint, read_record, write_record

RECORD = GroupRecord("ab" * 32, [ProcessName(17, 4711), ProcessName(18, 4712)], 9)


class Told(msgspec.Struct):
    """Stands for what workers are told."""

    block_size: int = 16


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "group.json")
    write_record(path, GroupRecord("older", []))
    write_record(path, RECORD)
    assert read_record(path) == RECORD
    assert os.listdir(tmp_path) == ["group.json"]
    assert (tmp_path / "group.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"\xff\xfe", b"[" * 60000, b'{"fingerprint": 1, "workers": []}', None],
    ids=["empty", "no fields", "no text", "deep", "wrong type", "cut off"],
)
def test_what_is_no_record_counts_as_none(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "group.json"
    path.write_bytes(msgspec.json.encode(RECORD)[:-5] if content is None else content)
    assert read_record(str(path)) is None


def test_no_file_is_no_record(tmp_path: Path) -> None:
    assert read_record(str(tmp_path / "group.json")) is None


def test_everything_that_matters_is_in_the_fingerprint(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"1234")
    first = fingerprint(Told(), str(tmp_path), "0.1.0")
    assert fingerprint(Told(), str(tmp_path), "0.1.0") == first
    others = {fingerprint(Told(8), str(tmp_path), "0.1.0"), fingerprint(Told(), str(tmp_path), "0.2.0")}
    # The same size and time, but another file.
    replaced = tmp_path / "new"
    replaced.write_bytes(b"5678")
    os.utime(replaced, ns=(weights.stat().st_atime_ns, weights.stat().st_mtime_ns))
    replaced.rename(weights)
    others.add(fingerprint(Told(), str(tmp_path), "0.1.0"))
    os.utime(weights, ns=(1, 1))
    others.add(fingerprint(Told(), str(tmp_path), "0.1.0"))
    (tmp_path / "tokenizer.json").touch()
    others.add(fingerprint(Told(), str(tmp_path), "0.1.0"))
    assert len(others | {first}) == 6
