"""Every format that the benchmark writes is one that the worker loads, and takes what the plan says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import stored_formats
from benchmarks.load_memory import load
from benchmarks.stored_formats import BLOCKS, FORMATS, Sizes, write_gguf, write_safetensors


def test_every_format_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stored_formats, "VOCAB", 128)
    sizes = Sizes(256, 1)
    weights = {}
    for name in (*FORMATS, *BLOCKS):
        folder = tmp_path / name
        folder.mkdir()
        if name in FORMATS:
            write_safetensors(folder, sizes, FORMATS[name])
            load(str(folder), FORMATS[name].quantization)
        else:
            write_gguf(folder / "model.gguf", sizes, name)
            load(str(folder / "model.gguf"), "none")
        weights[name] = json.loads(capsys.readouterr().out)["weights"]
    plain = weights["bfloat16"]
    # Of the matrices 8 bits take half of that, and 4 bits with what belongs to them a third.
    eights = (
        "w8a8 on load",
        "gptq 8 bits",
        "w8a16",
        "w8a8",
        "fp8 channels",
        "fp8 blocks",
        "modelopt",
        "Q8_0",
    )
    fours = ("int4 on load", "gptq", "awq", "w4a16", "w4a16 asymmetric", "Q4_0", "Q4_K")
    assert all(weights[name] < 0.62 * plain for name in eights)
    assert all(weights[name] < 0.4 * plain for name in fours)
    # The order of 256 inputs, four times, and of the inner units, besides.
    for name in ("gptq", "w4a16"):
        assert weights[name] < weights[f"{name} act-order"] < weights[name] + 10_000
