"""Every format that the benchmark writes is one that the worker loads, and takes what the plan says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import load_memory
from benchmarks.load_memory import BLOCKS, FORMATS, Sizes, load, write_gguf, write_safetensors


def test_every_format_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(load_memory, "VOCAB", 128)
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
    # 8 bits take half of that, and 4 bits with what belongs to them a third.
    assert all(
        weights[name] < 0.62 * plain for name in ("w8a8 on load", "w8a16", "fp8 blocks", "Q8_0", "MXFP4")
    )
    assert all(
        weights[name] < 0.4 * plain
        for name in ("int4 on load", "gptq", "gptq act-order", "awq", "w4a16", "Q4_K")
    )
