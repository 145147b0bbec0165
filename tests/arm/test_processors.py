"""Which kernels does a processor of 64-bit ARM get? Those that it can run, by what the system says of it."""

import sys

import pytest

from tests.arm.build import build, command
from tests.arm.remote import RemoteLibrary

pytestmark = pytest.mark.skipif("tests.arm.plugin" not in sys.modules, reason="make arm-check runs it")


@pytest.mark.parametrize(
    ("processor", "isas"),
    [
        ("cortex-a72", ["portable"]),
        ("neoverse-n1", ["portable", "neon_dot"]),
        ("max", ["portable", "neon_dot", "neon_bf16"]),
    ],
)
def test_the_best_kernels_that_a_processor_runs_are_used(processor: str, isas: list[str]) -> None:
    library = RemoteLibrary(command(build(), processor))
    assert library.cpu_isas() == isas
    assert library.cpu_isa() == isas[-1]
    library.close()
