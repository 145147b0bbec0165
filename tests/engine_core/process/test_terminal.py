"""Whether the controlling terminal of a process is gone."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

PROGRAM = """
import os, signal, sys
from splitserve.engine_core.process.terminal import Terminal
terminal = Terminal()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
os.write({out}, b"%d" % terminal.hung_up())
signal.sigwait([signal.SIGHUP])
os.write({out}, b"%d%d" % (terminal.hung_up(), terminal.hung_up()))
"""


def test_without_a_terminal_none_is_ever_gone() -> None:
    script = (
        "from splitserve.engine_core.process.terminal import Terminal; t = Terminal(); print(t.hung_up())"
    )
    done = subprocess.run([sys.executable, "-c", script], start_new_session=True, capture_output=True)
    assert done.stdout == b"False\n"


def test_a_terminal_that_is_closed_is_gone_once() -> None:
    reader, writer = os.pipe()
    pid, master = pty.fork()
    if pid == 0:
        os.set_inheritable(writer, True)
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM.format(out=writer)])
    os.close(writer)
    try:
        assert os.read(reader, 1) == b"0"
        os.close(master)
        assert os.read(reader, 2) == b"10"
    finally:
        os.waitpid(pid, 0)
        os.close(reader)
