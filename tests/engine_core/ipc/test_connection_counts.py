"""Numbers that the frontends of a launch share in memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.connection_counts import MAX_COUNTS, NOT_SERVING, ConnectionCounts

ROOT = Path(__file__).resolve().parents[3]


def test_nobody_serves_at_first() -> None:
    counts = ConnectionCounts.create(3)
    assert [counts[number] for number in (1, 2, 3)] == [NOT_SERVING] * 3
    assert len(counts) == 3


def test_another_process_sees_and_changes_them() -> None:
    counts = ConnectionCounts.create(2)
    counts[1] = 7
    code = (
        "import sys; from splitserve.engine_core.ipc.connection_counts import ConnectionCounts\n"
        "counts = ConnectionCounts(int(sys.argv[1])); counts[2] = counts[1] + 1"
    )
    subprocess.run([sys.executable, "-c", code, str(counts.fd)], cwd=ROOT, pass_fds=[counts.fd], check=True)
    assert counts[2] == 8


@pytest.mark.parametrize("size", [0, 7, 8 * (MAX_COUNTS + 1)])
def test_a_descriptor_of_something_else_is_refused(size: int) -> None:
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), size)
        with pytest.raises(ConfigError, match="does not contain the connection counts"):
            ConnectionCounts(file.fileno())


def test_a_descriptor_that_is_not_open_is_refused() -> None:
    with pytest.raises(ConfigError, match="descriptor 1000000 cannot be used"):
        ConnectionCounts(1_000_000)
