"""What the benchmarks of a worker's steps refuse to measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import step_kernels, worker
from benchmarks.worker import DEMO_MODEL, Bench
from splitserve.engine_core.sequence_sampling import SequenceSampling


@pytest.mark.parametrize(
    ("parse_options", "args", "least"),
    [(worker.parse_options, ["--steps", "30"], 39), (step_kernels.parse_options, [], 209)],
)
def test_a_context_without_room_for_a_prompt_and_the_steps_is_a_usage_error(
    parse_options: Callable[..., Any], args: list[str], least: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options([*args, "--context", str(least - 1)])
    assert ended.value.code == 2
    assert f"--context: must be at least {least} to hold a prompt" in capsys.readouterr().err
    assert parse_options([*args, "--context", str(least)]).context == least


@pytest.mark.parametrize("rows", ["0", "1,65", "1;2"])
def test_rows_that_no_step_has_are_a_usage_error(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        worker.parse_options(["--rows", rows])
    assert ended.value.code == 2
    assert "--rows" in capsys.readouterr().err
    assert worker.parse_options(["--rows", "1,64"]).rows == (1, 64)


def test_every_row_of_a_measured_step_computes_a_token() -> None:
    sampling = SequenceSampling(temperature=0.0, seed=0, ignore_eos=True)
    bench = Bench(str(DEMO_MODEL), 1, context=20, enforce_eager=True)
    assert bench.decode(2, 11, sampling).rows == 2
    with pytest.raises(RuntimeError, match="row 0 failed"):
        bench.decode(2, 12, sampling)
