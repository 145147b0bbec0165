from __future__ import annotations

import pytest

from benchmarks.prefill_cap import MACHINES, Machine, measure


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_the_engine_holds_the_target_however_deep_in_a_prompt(machine: Machine) -> None:
    figures = measure(machine, 200)
    assert float(figures["ITL p99"]) <= 190, "aims at 180"
    assert float(figures["ITL p50"]) >= 90, "and uses the time it has"
