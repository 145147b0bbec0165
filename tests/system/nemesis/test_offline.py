"""A program that uses LLM notices nothing when its engine or worker is killed in the middle of a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitserve import LLM, SamplingParams
from tests.system.nemesis.stage import Stage, wait_for

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

PROMPTS = [f"Count from {number} to 20." for number in range(8)]
PARAMS = SamplingParams(temperature=0.9, seed=3, max_tokens=100, ignore_eos=True, logprobs=1)


def test_outputs_are_the_same_after_the_death_of_engine_and_worker(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(folder)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("SPLITSERVE_KILL_POINT", f"@{stage.order_file}")
    with LLM() as llm:
        expected = [output.outputs for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
        for kill_point in ("engine.output_received:30", "worker.step_computed:30"):
            stage.order(kill_point)
            outputs = [output.outputs for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
            assert stage.struck() is not None
            assert outputs == expected
    wait_for(lambda: not stage.all_pids(), "nothing of it is left")
