"""A record that no engine wrote names no process, and stops no engine from starting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from splitserve.engine_core.kept.processes import ProcessName, kill_processes, name_process, open_process
from splitserve.engine_core.kept.record import read_record


@pytest.mark.parametrize("pid", [0, -1, 2**31, 2**40, 2**63 - 1])
def test_a_number_that_no_process_has_is_no_process(pid: int) -> None:
    assert open_process(ProcessName(pid, 1)) == -1
    assert kill_processes([ProcessName(pid, 1)], 0.0)


def test_a_pid_that_is_another_process_by_now_is_not_taken_for_it() -> None:
    ours = name_process(os.getpid())
    assert open_process(ProcessName(ours.pid, ours.start_ticks + 1)) == -1


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff", b'{"fingerprint": 1, "workers": []}', b"[" * 60_000, b'{"workers": "x"}'],
)
def test_what_is_no_record_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "group.json"
    path.write_bytes(content)
    assert read_record(str(path)) is None
