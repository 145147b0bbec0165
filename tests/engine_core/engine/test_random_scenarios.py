"""Thousands of random lives of an engine; a failure names its seed. `make soak` plays new ones for longer."""

from __future__ import annotations

import pytest

from tests.engine_core.scenarios import Tally, run_scenario

# So many that even the rarest of events is met, whatever the seeds make of a change.
SEEDS_PER_TEST = 500
# The lives that `make test` plays, and those that only `make test-all` does.
QUICK = range(0, 500, SEEDS_PER_TEST)
OTHERS = range(500, 2000, SEEDS_PER_TEST)


@pytest.mark.parametrize(
    "first_seed", [*QUICK, *(pytest.param(seed, marks=pytest.mark.slow) for seed in OTHERS)]
)
def test_random_scenarios_end_with_every_promise_kept(first_seed: int) -> None:
    tallies = [run_scenario(seed) for seed in range(first_seed, first_seed + SEEDS_PER_TEST)]
    # Guards against scenarios that never reach the paths they are about.
    totals = Tally(*map(sum, zip(*tallies, strict=True)))
    assert min(totals) > 0, totals


def test_a_scenario_is_a_function_of_its_seed() -> None:
    assert run_scenario(12345) == run_scenario(12345)


def test_a_failure_names_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(engine: object) -> None:
        raise ValueError("broken on purpose")

    monkeypatch.setattr("splitserve.engine_core.engine.core.EngineCore.check_integrity", broken)
    with pytest.raises(AssertionError, match=r"scenario 7: ValueError.*--seed 7 --events 16"):
        run_scenario(7)
