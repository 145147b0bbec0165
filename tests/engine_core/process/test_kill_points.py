"""A process ends or stops at the place it was told, at no other, and not before the count is reached."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from splitserve.engine_core.process.kill_points import KILL_POINTS

PROGRAM = """
from splitserve.engine_core.process.kill_points import reach
for i in range(4):
    print(i, flush=True)
    reach("engine.bound")
    reach("worker.ready")
"""


def run(kill_point: str | None) -> tuple[int, list[str]]:
    env = {name: value for name, value in os.environ.items() if name != "SPLITSERVE_KILL_POINT"}
    if kill_point is not None:
        env["SPLITSERVE_KILL_POINT"] = kill_point
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.split()


@pytest.mark.parametrize(
    ("kill_point", "code", "num_lines"),
    [
        (None, 0, 4),
        ("engine.bound", -signal.SIGKILL, 1),
        ("worker.ready:3", -signal.SIGKILL, 3),
        ("engine.bound:2:SIGTERM", -signal.SIGTERM, 2),
        ("engine.bound:9", 0, 4),
        ("frontend.started", 0, 4),
    ],
)
def test_a_process_is_struck_where_and_when_it_was_told(
    kill_point: str | None, code: int, num_lines: int
) -> None:
    assert run(kill_point) == (code, [str(i) for i in range(num_lines)])


ARMED_PROGRAM = """
import os, sys
from splitserve.engine_core.process.kill_points import reach
path, order = sys.argv[1:]
reach("engine.bound")
open(path, "w").write(order)
for i in range(4):
    print(i, flush=True)
    reach("worker.ready")
    reach("engine.bound")
"""


def test_an_order_in_a_file_holds_once_and_from_when_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "order"
    env = {**os.environ, "SPLITSERVE_KILL_POINT": f"@{path}"}
    command = [sys.executable, "-c", ARMED_PROGRAM, str(path), "engine.bound:2"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout.read().split() == [b"0", b"1"]
    assert process.returncode == -signal.SIGKILL
    assert [file.name for file in tmp_path.iterdir()] == [f"order.{process.pid}"]
    again = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, check=False)
    assert again.returncode == 0


def test_only_one_of_several_processes_carries_out_an_order(tmp_path: Path) -> None:
    path = tmp_path / "order"
    path.write_text("engine.bound")
    env = {**os.environ, "SPLITSERVE_KILL_POINT": f"@{path}"}
    started = [subprocess.Popen([sys.executable, "-c", PROGRAM], env=env) for _ in range(3)]
    assert sorted(process.wait() for process in started) == [-signal.SIGKILL, 0, 0]


def test_names_say_the_process_and_the_place() -> None:
    assert {name.partition(".")[0] for name in KILL_POINTS} == {"engine", "worker", "frontend"}
