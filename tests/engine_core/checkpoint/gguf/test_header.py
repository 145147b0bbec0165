"""Which GGUF files are refused before anything is read of their tensors."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.engine_core.checkpoint.gguf import header
from splitserve.engine_core.checkpoint.gguf.gguf_file import GgufFile, is_gguf
from splitserve.engine_core.checkpoint.gguf.header import Texts
from splitserve.engine_core.errors import ModelLoadError
from tests.engine_core.checkpoint.gguf_writing import (
    Tensor,
    Value,
    embedding,
    file_bytes,
    llama,
    text,
    value_bytes,
)

GOOD = file_bytes(
    llama(), {**embedding(), "b": Tensor(8, [32, 3], bytes(34 * 3)), "c": Tensor(1, [5], bytes(10))}
)


def opened(path: Path, content: bytes) -> GgufFile:
    path.write_bytes(content)
    file = GgufFile(path)
    file.close()
    return file


def with_metadata(raw: bytes) -> bytes:
    """A file with one more metadata than a good one has, as it is given."""
    content = bytearray(file_bytes({}, {}))
    content[16:24] = struct.pack("<Q", 1)
    return bytes(content[:24]) + raw


def test_metadata_and_tensors_are_read(tmp_path: Path) -> None:
    values: dict[str, Value] = {
        "flag": True,
        "number": 7,
        "half": 0.5,
        "text": "é",
        "list": [1, 2],
        "names": ["a", ""],
    }
    file = opened(tmp_path / "m", file_bytes(values, {"t": Tensor(12, [512, 3], bytes(144 * 2 * 3))}))
    names = file.metadata.pop("names")
    assert isinstance(names, Texts)
    assert names.decode() == ["a", ""]
    assert file.metadata == {"flag": True, "number": 7, "half": 0.5, "text": "é", "list": [1, 2]}
    entry = file.tensors["t"]
    assert (entry.dtype, entry.shape, entry.num_bytes) == ("Q4_K", (3, 512), 864)
    assert entry.begin % 32 == 0


def test_a_large_header_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header, "_FIRST_BYTES", 16)
    file = opened(tmp_path / "m", GOOD)
    assert list(file.tensors) == ["token_embd.weight", "b", "c"]


def test_only_files_that_begin_like_one_are_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model"
    assert not is_gguf(path)
    assert not is_gguf(tmp_path)
    path.write_bytes(b"GGU")
    assert not is_gguf(path)
    path.write_bytes(GOOD)
    assert is_gguf(path)


REFUSED = [
    (b"GGML" + GOOD[4:], "is not a GGUF file"),
    (file_bytes({}, {}, version=1), "has version 1 of GGUF"),
    (file_bytes({}, {}, version=0x03000000), "has version 50331648"),
    (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "claims 1152921504606846976 tensors"),
    (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "1152921504606846976 metadata"),
    (with_metadata(struct.pack("<Q", 2**63)), "is truncated"),
    (with_metadata(text(b"\xff") + value_bytes(1)), "key of a metadata that is not UTF-8"),
    (with_metadata(text("a\nb") + value_bytes(1)), "key of a metadata 'a"),
    (with_metadata(text("k") + struct.pack("<I", 99)), "'k' of the unknown type 99"),
    (with_metadata(text("k") + struct.pack("<IIQ", 9, 8, 2**50)), "claims 1125899906842624 items"),
    (with_metadata(text("k") + struct.pack("<IIQ", 9, 4, 2**40)), "claims 1099511627776 items"),
    (with_metadata(text("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(16)), "items of type 9"),
    (file_bytes({"general.alignment": 0}, {}), "general.alignment 0"),
    (file_bytes({"general.alignment": "x"}, {}), "general.alignment 'x'"),
    (file_bytes({}, {"t": Tensor(17, [256], b"")}), "type IQ2_XS; supported are F32, F16, Q4_0"),
    (file_bytes({}, {"t": Tensor(200, [256], b"")}), "type 200"),
    (file_bytes({}, {"t": Tensor(0, [], b"")}), "with 0 dimensions"),
    (file_bytes({}, {"t": Tensor(0, [1] * 5, b"")}), "with 5 dimensions"),
    (file_bytes({}, {"t": Tensor(0, [0], b"")}), "of size [0]"),
    (file_bytes({}, {"t": Tensor(0, [2**60], b"")}), "of size [1152921504606846976]"),
    (file_bytes({}, {"t": Tensor(12, [288], b"")}), "rows of 288, which no blocks of 256 fill"),
    (file_bytes({}, {"t": Tensor(0, [2**20, 2**20], b"")}), "is truncated: tensor 't'"),
    (file_bytes({}, {"t": Tensor(0, [8], bytes(32), 2**62)}), "is truncated: tensor 't'"),
    (file_bytes({}, {"t": Tensor(0, [8], bytes(32), 8)}), "is not aligned to 32"),
    (
        file_bytes({}, {"t": Tensor(0, [16], bytes(64)), "u": Tensor(0, [8], bytes(32), 32)}),
        "'u', which overlaps the one before it",
    ),
]


@pytest.mark.parametrize(("content", "message"), REFUSED)
def test_a_damaged_file_is_refused_with_its_name_and_fault(
    content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    with pytest.raises(ModelLoadError) as raised:
        opened(path, content)
    assert str(path) in str(raised.value)
    assert message in str(raised.value)
    assert len(str(raised.value)) < 1000


def test_names_that_occur_twice_are_refused(tmp_path: Path) -> None:
    twice = text("k") + value_bytes(1)
    content = bytearray(file_bytes({}, {}))
    content[16:24] = struct.pack("<Q", 2)
    with pytest.raises(ModelLoadError, match="has the metadata 'k' twice"):
        opened(tmp_path / "m", bytes(content[:24]) + twice + twice)


@given(st.integers(0, len(GOOD) - 1))
def test_a_file_that_ends_early_is_refused(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "m"
    if length >= len(GOOD) - 22:
        # Only padding is missing behind the last tensor.
        opened(path, GOOD[:length])
        return
    with pytest.raises(ModelLoadError):
        opened(path, GOOD[:length])
