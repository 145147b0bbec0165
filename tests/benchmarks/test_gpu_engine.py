"""benchmarks.gpu_engine runs from shape to table on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_engine, gpu_engine_peers
from benchmarks.gpu_engine_bench import Bench, Beside
from benchmarks.gpu_engine_shapes import SHAPES, write_config
from splitserve.worker.device.cpu import CpuDevice

ARGS = ["--shape", "tiny", "--device", "cpu", "--dtype", "float32", "--batches", "1,3", "--context", "40"]
ARGS += ["--requests", "2", "--request-tokens", "8", "--copy-bytes", "1048576"]


class Peer:
    """Stands in for transformers, whose continuous batching takes 14 s to begin on a CPU."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        assert (folder / "config.json").is_file()

    def decode(self, batch: int, context: int) -> float:
        return 0.5 * batch

    def serve(self, requests: int, tokens: int) -> float:
        return 2.0


def test_every_measure_of_a_shape_is_in_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_engine_peers, "Transformers", Peer)
    assert gpu_engine.main([*ARGS, "--peers", "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    phases = ["  inputs", "  layers", "  head", "  sampler"]
    decode = ["decode", *phases]
    moves = ["  blocks out", "  prefill, blocks out", "  blocks in", "  prefill, blocks in"]
    peers = ["transformers generate"] * 2 + ["transformers continuous"]
    assert [row["what"] for row in rows] == [*decode, *decode, "prefill", *moves, "2 requests", *peers]
    assert all(row["ms"] > 0 for row in rows)
    assert [row["batch"] for row in rows if row["what"] == "decode"] == [1, 3]
    assert all(row["share"] > 0 for row in rows if row["what"] == "decode")
    assert [row["tokens_per_s"] for row in rows[-3:]] == [2.0, 2.0, 8.0]
    assert all(row["shape"] in capsys.readouterr().out for row in rows[:1])


def test_blocks_that_move_beside_a_prefill_move(tmp_path: Path) -> None:
    args = gpu_engine.parse(ARGS)
    folder = write_config(SHAPES["tiny"], tmp_path, 48)
    bench = Bench(folder, CpuDevice(), 3, args)
    blocks = bench._worker.runner._host_blocks
    # Three rows of three blocks, of which the first row keeps its own.
    assert bench.num_moved == 6
    blocks._pool.normal_()
    pool = blocks._pool.clone()
    bench.prefill_beside(40, bench.moves_out())
    assert torch.equal(blocks._host, pool[:, 3:].transpose(0, 1))
    blocks._pool.zero_()
    bench.prefill_beside(40, bench.moves_in())
    assert torch.equal(blocks._pool[:, 3:], pool[:, 3:])


def test_requests_may_be_longer_than_the_context(tmp_path: Path) -> None:
    arguments = [*ARGS, "--request-tokens", "44", "--json", str(tmp_path / "rows.json")]
    assert gpu_engine.main(arguments) == 0
    assert json.loads((tmp_path / "rows.json").read_text())[-1]["what"] == "2 requests"


def test_a_context_too_short_to_decode_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_engine.main([*ARGS, "--context", "24"])
    assert "--context must be above 24, got 24" in capsys.readouterr().err


def test_a_quarter_of_the_moves_time_that_is_left_is_three_quarters_hidden() -> None:
    assert Beside(prefill_s=2.0, moves_s=1.0, both_s=2.25).hidden_share == 0.75


def test_what_has_no_time_is_left_out_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    gpu_engine.main([*ARGS, "--shape", "tiny,tiny", "--seconds", "0.0"])
    assert capsys.readouterr().out.count("tiny: no time left") == 2


def test_what_fails_keeps_the_others_from_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(Peer):
        def serve(self, requests: int, tokens: int) -> float:
            raise ValueError("no room for a cache")

    monkeypatch.setattr(gpu_engine_peers, "Transformers", Failing)
    arguments = [*ARGS, "--shape", "tiny,tiny", "--peers", "--json", str(tmp_path / "rows.json")]
    assert gpu_engine.main(arguments) == 1
    whats = [row["what"] for row in json.loads((tmp_path / "rows.json").read_text())]
    # All of ours first, then the peer of each shape.
    assert whats[-4:] == ["transformers generate"] * 4
    assert whats.count("2 requests") == 2
    assert capsys.readouterr().err.count("ValueError: no room for a cache") == 2


def test_an_unknown_shape_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_engine.main(["--shape", "huge"])
    assert "--shape must be of tiny, qwen3-0.6b" in capsys.readouterr().err
