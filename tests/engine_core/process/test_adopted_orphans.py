"""Ended processes that the kernel gave us, since the process that started them died before."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The first process of a container, as far as its descendants are concerned.
PROGRAM = """
import ctypes, os, subprocess, sys
from splitserve.engine_core.process.children import reap_adopted
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
orphan = "import subprocess; print(subprocess.Popen(['cat']).pid)"
parent = subprocess.Popen([sys.executable, "-c", orphan], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
pid = int(parent.stdout.readline())
parent.stdin.close()
os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
reap_adopted({parent.pid})
code = parent.wait()
reap_adopted(set())
print(code, os.path.exists(f"/proc/{pid}"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes do not adopt others")
def test_an_orphan_is_reaped_and_a_child_of_our_own_is_not() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0 False\n", "")
