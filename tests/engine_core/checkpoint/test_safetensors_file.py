"""What the check of one safetensors file accepts and refuses."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file

from splitserve.engine_core.checkpoint import safetensors_file
from splitserve.engine_core.checkpoint.safetensors_file import SafetensorsFile, parse_header
from splitserve.engine_core.errors import ModelLoadError
from tests.engine_core.checkpoint.writing import entry, file_bytes

GOOD = {
    "__metadata__": {"format": "pt"},
    "a": entry("F32", [2, 3], 0, 24),
    "b": entry("BF16", [4], 24, 32),
    "scalar": entry("I64", [], 32, 40),
    "empty": entry("F16", [0, 5], 40, 40),
}


def check(path: Path, content: bytes) -> dict[str, safetensors_file.TensorEntry]:
    (path / "x.safetensors").write_bytes(content)
    file = SafetensorsFile(path / "x.safetensors")
    file.close()
    return file.tensors


def test_what_the_reference_writer_writes_is_accepted(tmp_path: Path) -> None:
    tensors = {
        "w": torch.arange(6.0).view(2, 3),
        "v": torch.ones(5, dtype=torch.bfloat16),
        "s": torch.ones(()),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert {name: (found.dtype, found.shape) for name, found in file.tensors.items()} == {
        "w": ("F32", (2, 3)),
        "v": ("BF16", (5,)),
        "s": ("F32", ()),
    }
    target = bytearray(24)
    file.read_into(file.tensors["w"].begin, memoryview(target))
    file.close()
    assert torch.frombuffer(target, dtype=torch.float32).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_good_file_gives_absolute_offsets(tmp_path: Path) -> None:
    content = file_bytes(GOOD, bytes(40))
    tensors = check(tmp_path, content)
    assert set(tensors) == {"a", "b", "scalar", "empty"}
    assert tensors["b"].begin == len(content) - 16
    assert tensors["b"].num_bytes == 8


BAD: dict[str, tuple[Any, int, str]] = {
    "overlap": ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, 12, "'b' overlaps"),
    "same range twice": ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 0, 8)}, 8, "'b' overlaps"),
    "gap": ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 12, 20)}, 20, "4 bytes before tensor 'b'"),
    "gap at start": ({"a": entry("F32", [2], 4, 12)}, 12, "4 bytes before tensor 'a'"),
    "truncated": ({"a": entry("F32", [2], 0, 8)}, 7, "truncated: tensor 'a'"),
    "bytes left over": ({"a": entry("F32", [2], 0, 8)}, 9, "1 bytes at the end"),
    "no tensors but data": ({}, 1, "1 bytes at the end"),
    "range too short": ({"a": entry("F32", [2], 0, 7)}, 7, "'a' of shape"),
    "range backwards": ({"a": entry("F32", [2], 8, 0)}, 8, "'a' of shape"),
    "product beyond 64 bits": ({"a": entry("F32", [2**40, 2**40], 0, 0)}, 0, "'a' of shape"),
    "product that wraps to 0": ({"a": entry("F32", [2**32, 2**32, 4], 0, 0)}, 0, "'a' of shape"),
    "negative size": ({"a": entry("F32", [-2, -4], 0, 32)}, 32, "'a' has an invalid description"),
    "negative offset": ({"a": entry("F32", [2], -8, 0)}, 0, "'a' has an invalid description"),
    "size above the limit": ({"a": entry("F32", [2**50], 0, 8)}, 8, "'a' has an invalid description"),
    "fractional size": ({"a": entry("F32", [0.5], 0, 2)}, 2, "'a' has an invalid description"),  # type: ignore[list-item]
    "nine dimensions": ({"a": entry("U8", [1] * 9, 0, 1)}, 1, "'a' has an invalid description"),
    "unknown dtype": ({"a": entry("F4", [2], 0, 8)}, 8, "unknown dtype 'F4'"),
    "unknown field": ({"a": {**entry("U8", [1], 0, 1), "x": 1}}, 1, "'a' has an invalid description"),
    "unknown field of many characters": (
        {"a": {**entry("U8", [1], 0, 1), "x" * 10**6: 1}},
        1,
        "'a' has an invalid description",
    ),
    "no shape": ({"a": {"dtype": "U8", "data_offsets": [0, 1]}}, 1, "'a' has an invalid description"),
    "one offset": (
        {"a": {"dtype": "U8", "shape": [1], "data_offsets": [0]}},
        1,
        "'a' has an invalid description",
    ),
    "entry is a list": ({"a": []}, 0, "'a' has an invalid description"),
    "long name": ({"a" * 600: entry("U8", [1], 0, 1)}, 1, "600 characters"),
    "header is a list": (b"[1]", 0, "not a JSON object"),
    "header is not JSON": (b"{", 0, "not a JSON object"),
    "header is not UTF-8": (b'{"\xff": 1}', 0, ""),
    "header nests deeply": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 0, ""),
    "empty header": (b"", 0, "not a JSON object"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_header_is_refused_with_file_and_tensor_named(name: str, tmp_path: Path) -> None:
    header, num_data_bytes, words = BAD[name]
    with pytest.raises(ModelLoadError) as raised:
        check(tmp_path, file_bytes(header, bytes(num_data_bytes)))
    assert words in str(raised.value)
    assert "x.safetensors" in str(raised.value)
    assert len(str(raised.value)) < 2000


@pytest.mark.parametrize("content", [b"", b"1234567", struct.pack("<Q", 1), struct.pack("<Q", 2**63) + b"{}"])
def test_a_header_that_does_not_fit_in_the_file_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"x\.safetensors"):
        check(tmp_path, content)


def test_a_header_above_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", safetensors_file.MAX_HEADER_BYTES + 1))
        file.truncate(10 * safetensors_file.MAX_HEADER_BYTES)
    with pytest.raises(ModelLoadError, match="claims a header"):
        SafetensorsFile(path)


def test_too_many_entries_are_refused(tmp_path: Path) -> None:
    header = {f"t{i}": entry("U8", [0], 0, 0) for i in range(safetensors_file.MAX_TENSORS + 1)}
    with pytest.raises(ModelLoadError, match="65537 entries"):
        parse_header(json.dumps(header).encode(), 10**9, "x")


def test_a_duplicate_name_cannot_hide_data() -> None:
    one, two = json.dumps(entry("U8", [1], 0, 1)), json.dumps(entry("U8", [1], 1, 2))
    header = f'{{"a": {one}, "a": {two}}}'.encode()
    with pytest.raises(ModelLoadError, match="1 bytes before tensor 'a'"):
        parse_header(header, 8 + len(header) + 2, "x")


def test_a_file_cut_short_while_it_is_read_is_an_error_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_bytes(GOOD, bytes(40)))
    file = SafetensorsFile(path)
    with path.open("r+b") as writer:
        writer.truncate(path.stat().st_size - 20)
    with pytest.raises(ModelLoadError, match="while it is being read"):
        file.read_into(file.tensors["a"].begin, memoryview(bytearray(24)))
    file.close()


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Return content with a few random edits, most of them within the header."""
    data = bytearray(content)
    header_end = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(rng.randint(1, 4)):
        position = rng.randrange(min(header_end, len(data)) or 1)
        kind = rng.randrange(6)
        if kind == 0 and data:
            data[position] = rng.randrange(256)
        elif kind == 1:
            data[position:position] = bytes(
                rng.choices(b'0123456789[]{},:"-eE.\\unatlrefs', k=rng.randint(1, 12))
            )
        elif kind == 2:
            del data[position : position + rng.randint(1, 30)]
        elif kind == 3:
            del data[rng.randrange(len(data) + 1) :]
        elif kind == 4:
            data += bytes(rng.randint(1, 50))
        else:
            start = rng.randrange(len(data) + 1)
            data[position:position] = data[start : start + rng.randint(1, 60)]
        if len(data) > 8 and rng.random() < 0.7:
            # Keep the length honest, so that the edit reaches the parser.
            data[:8] = struct.pack("<Q", max(0, header_end - 8 + len(data) - len(content)))
    return bytes(data)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_files_are_accepted_or_refused_but_never_crash(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    tensors = {f"layer.{i}.weight": torch.ones(i + 1, 3, dtype=torch.bfloat16) for i in range(5)}
    content = save(tensors, metadata={"format": "pt"})
    num_refused = 0
    for _ in range(300):
        mutated = mutate(content, rng)
        refusal, tensors_found = outcome(tmp_path, mutated)
        num_refused += refusal is not None
        assert refusal is None or "x.safetensors" in refusal
        assert sum(tensor.num_bytes for tensor in tensors_found.values()) <= len(mutated)
    # Nearly all mutations must be caught; the rest change names or metadata only.
    assert num_refused > 200


def outcome(path: Path, content: bytes) -> tuple[str | None, dict[str, safetensors_file.TensorEntry]]:
    """Return the refusal, or the tensors found."""
    try:
        return None, check(path, content)
    except ModelLoadError as error:
        return str(error), {}
