"""Commands that are started without stdin, stdout or stderr."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from splitserve.engine_core.process.standard_streams import open_standard_streams
result = os.dup({free})
for number in {closed}:
    os.close(number)
    setattr(sys, ["stdin", "stdout", "stderr"][number], None)
open_standard_streams()
print("lost", file=sys.stderr if 2 in {closed} else sys.stdout, flush=True)
null = os.stat(os.devnull).st_rdev
os.write(result, repr([os.fstat(number).st_rdev == null for number in range(3)]).encode())
"""


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 2)])
def test_what_was_closed_leads_nowhere(closed: tuple[int, ...]) -> None:
    free = 1 if 2 in closed else 2
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(closed=closed, free=free)],
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = done.stdout + done.stderr
    assert said.replace("lost\n", "") == repr([number in closed for number in range(3)])
    assert ("lost" in said) is (closed == (0,))


@pytest.mark.parametrize("command", ["engine_core.launcher.cli", "engine_core.cli", "frontend.cli"])
def test_every_command_has_them(command: str) -> None:
    code = (
        f"import contextlib, os\nfrom splitserve.{command} import main\n"
        "with contextlib.suppress(SystemExit):\n    main(['--version'])\nos.fstat(0)"
    )
    words = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-c", code]
    assert subprocess.run(words, capture_output=True, timeout=60, check=False).returncode == 0
