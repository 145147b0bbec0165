"""`splitserve bench` against a running server: table, file, picture, sweep, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from splitserve.client.commands import BENCH_COMMANDS, COMMANDS
from splitserve.engine_core.launcher.cli import main

pytestmark = pytest.mark.system

SMALL = ["--num-prompts", "12", "--random-input-len", "20", "--random-output-len", "8", "--disable-tqdm"]


def bench(url: str, *flags: str, command: str = "serve") -> int:
    return main(["bench", command, "--base-url", url, *SMALL, *flags])


def test_the_table_and_the_file_have_what_vllms_have(
    server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--max-concurrency", "4", "--metric-percentiles", "50,99", "--goodput", "ttft:60000"]
    files = ["--save-result", "--save-detailed", "--result-dir", str(tmp_path), "--result-filename", "r.json"]
    percentiles = ["--percentile-metrics", "ttft,tpot,itl,e2el"]
    assert bench(server_url, *flags, *files, *percentiles, "--metadata", "tp=1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    shown = {
        name.strip(): float(value) for name, _, value in (line.partition(":") for line in lines) if value
    }
    assert shown["Successful requests"] == 12
    assert shown["Total input tokens"] == 12 * 20
    assert shown["Total generated tokens"] == 12 * 8
    for name in ("TTFT", "TPOT", "ITL", "E2EL"):
        assert 0 <= shown[f"P50 {name} (ms)"] == shown[f"Median {name} (ms)"] <= shown[f"P99 {name} (ms)"]
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["completed"] == 12
    assert result["failed"] == 0
    assert result["tp"] == "1"
    assert result["request_rate"] == "inf"
    assert result["request_goodput"] == pytest.approx(result["request_throughput"])
    assert result["p99_ttft_ms"] == pytest.approx(shown["P99 TTFT (ms)"], abs=0.01)
    assert result["output_lens"] == [8] * 12
    assert result["max_concurrent_requests"] >= 1


@pytest.mark.parametrize("dataset", ["random", "multi_turn"])
def test_chats_are_measured(server_url: str, dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    chats = ["--backend", "openai-chat", "--dataset-name", dataset, "--multi-turn-num-turns", "3"]
    assert bench(server_url, *chats, "--ignore-eos", "--request-rate", "500", "--num-warmups", "1") == 0
    out = capsys.readouterr().out
    assert "Successful requests:                     12" in out
    assert "Total generated tokens:                  96" in out
    assert "Request rate configured (RPS):           500.00" in out


def test_a_sweep_measures_each_point_and_draws_them(
    server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, result = tmp_path / "s.svg", tmp_path / "s.json"
    files = ["--plot", str(picture), "--save-result", "--result-filename", str(result)]
    points = ["--sweep-max-concurrency", "1", "4"]
    assert bench(server_url, *points, *files, command="sweep") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[:4] for row in rows[1:]] == [["inf", "1", "12", "0"], ["inf", "4", "12", "0"]]
    assert [each["max_concurrency"] for each in json.loads(result.read_text())] == [1, 4]
    assert picture.read_text().count("<svg") == 1


def test_requests_that_fail_are_counted_and_told(server_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(server_url, "--top-p", "0", "--plot", "/nowhere/x.svg") == 1
    captured = capsys.readouterr()
    assert "12 requests failed" in captured.err
    assert "top_p" in captured.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--goodput", "itl:5"], "--goodput takes NAME:MS"),
        (["--goodput", "ttft:x"], "--goodput takes NAME:MS"),
        (["--metric-percentiles", "101"], "--metric-percentiles takes numbers"),
        (["--percentile-metrics", "ttft,x"], "--percentile-metrics takes"),
        (["--metadata", "x"], "--metadata takes KEY=VALUE"),
        (["--extra-body", "[1]"], "--extra-body takes a JSON object"),
        (["--dataset-name", "multi_turn"], "needs --backend openai-chat"),
        (["--requst-rate", "1"], "did you mean --request-rate?"),
    ],
)
def test_a_wrong_flag_is_named(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = bench("http://127.0.0.1:9", *flags)
    except SystemExit as error:
        code = int(str(error.code))
    assert code == 2
    assert said in capsys.readouterr().err


def test_nobody_there_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(f"unix:{tmp_path}/none.sock") == 1
    assert capsys.readouterr().err.startswith("splitserve: error: http://localhost: ")


@pytest.mark.parametrize("command", [*COMMANDS, *BENCH_COMMANDS], ids=lambda command: command.module)
def test_every_command_shows_its_help(command: object, capsys: pytest.CaptureFixture[str]) -> None:
    name = command.name  # type: ignore[attr-defined]
    words = [name] if command in COMMANDS else ["bench", name]
    with pytest.raises(SystemExit, match="0"):
        main([*words, "--help"])
    assert "usage: splitserve " + " ".join(words) in capsys.readouterr().out
