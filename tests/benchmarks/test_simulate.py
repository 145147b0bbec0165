"""The command: figures, sweeps and pictures written, wrong flags refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.simulate import main
from benchmarks.simulation.cost_model import CostModel, StepWork
from benchmarks.simulation.figures import METRICS, metric_of
from benchmarks.simulation.fit import MeasuredStep, fit
from benchmarks.simulation.report import make_report
from benchmarks.simulation.settings import make_settings
from benchmarks.simulation.sweep import simulate

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["requests=30", "output_tokens=8", "num_blocks=500", "rate=50"]


def test_a_run_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    assert main([*QUICK, "--check", "--json", str(path), "max_prefill_tokens=64"]) == 0
    written = json.loads(path.read_text())
    assert written["settings"]["schedulerconfig"]["max_prefill_tokens"] == 64
    assert written["report"]["completed"] == 30
    assert written["report"]["digest"] in capsys.readouterr().out


def test_a_sweep_runs_every_combination(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sweep.json"
    flags = ["--sweep", "rate=20,40", "--compare", "policy=fcfs,priority", "--metrics", "ttft_p99,itl_p99"]
    assert main([*QUICK, *flags, "--json", str(path)]) == 0
    points = json.loads(path.read_text())["points"]
    assert [(point["line"], point["x"]) for point in points] == [
        ("policy=fcfs", "20"),
        ("policy=fcfs", "40"),
        ("policy=priority", "20"),
        ("policy=priority", "40"),
    ]
    assert len(capsys.readouterr().out.splitlines()) == 5


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_pictures_are_drawn(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    run, swept = tmp_path / f"run.{ending}", tmp_path / f"sweep.{ending}"
    assert main([*QUICK, "--picture", str(run)]) == 0
    assert main([*QUICK, "--sweep", "rate=20,40", "--picture", str(swept)]) == 0
    assert min(run.stat().st_size, swept.stat().st_size) > 5000


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["rate"], "key=value"),
        (["speed=1"], "speed"),
        (["--compare", "rate=1,2"], "--sweep"),
        (["--picture", "run.pdf"], ".svg or .png"),
        (["--sweep", "rate=1", "--metrics", "luck"], "luck"),
        (["--sweep", "rate=1,-1"], "rate"),
        (["trace=/nowhere/trace.jsonl"], "/nowhere/trace.jsonl"),
    ],
)
def test_wrong_flags_are_refused(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags) == 2
    assert message in capsys.readouterr().err


def test_every_metric_can_be_read() -> None:
    report = make_report(simulate(make_settings(dict(pair.split("=") for pair in QUICK))))
    assert all(metric_of(report, metric) >= 0 for metric in METRICS)
    assert metric_of(report, "ttft_p99") == report.ttft_ms.p99
    assert metric_of(report, "itl_max") == report.itl_ms.max


def test_the_command_loads_neither_torch_nor_matplotlib() -> None:
    code = "import sys, benchmarks.simulate; print({'torch', 'matplotlib', 'worker'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == ("set()\n", "")


WORKS = [
    *(StepWork(0, rows, rows * before, 0) for rows in (1, 4, 32) for before in (16, 256)),
    *(StepWork(0, rows, rows * 16, 0, moves) for rows in (1, 32) for moves in (3, 40)),
    *(StepWork(n, 0, n + before, n * before + n * n // 2) for n in (8, 64, 256) for before in (0, 128)),
]


def test_a_fit_finds_the_costs_that_made_the_times() -> None:
    cost = CostModel(
        step_us=500, prefill_token_us=47, decode_row_us=78, context_token_us=1.5, attention_pair_us=0.03
    )
    result = fit([MeasuredStep(work, cost.step_s(work)) for work in WORKS])
    for name in CostModel.__struct_fields__:
        assert getattr(result.cost, name) == pytest.approx(getattr(cost, name), rel=1e-6)
    assert result.max_error < 1e-9


def test_a_fit_has_no_negative_costs() -> None:
    steps = [
        MeasuredStep(work, 1e-3 * work.decode_rows + 2e-3 - 1e-7 * work.context_tokens) for work in WORKS
    ]
    cost = fit(steps).cost
    assert min(getattr(cost, name) for name in CostModel.__struct_fields__) >= 0
    assert cost.context_token_us == 0
    assert cost.step_us > 0
