"""Whether the controlling terminal of a process is gone."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
from splitserve.engine_core.process.terminal import Terminal
terminal = Terminal()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
os.write({out}, b"%d" % terminal.hung_up(5.0))
signal.sigwait([signal.SIGHUP])
{looks}
os.write({out}, b"%d%d" % (terminal.hung_up(8.0), terminal.hung_up(8.0)))
"""


def test_without_a_terminal_none_is_ever_gone() -> None:
    script = (
        "from splitserve.engine_core.process.terminal import Terminal; t = Terminal(); print(t.hung_up(5.0))"
    )
    done = subprocess.run([sys.executable, "-c", script], start_new_session=True, capture_output=True)
    assert done.stdout == b"False\n"


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        pytest.param("", b"10", id="with the signal"),
        pytest.param("terminal.look(7.0)", b"10", id="just before it"),
        pytest.param("terminal.look(6.0); terminal.look(7.0)", b"00", id="long before it"),
    ],
)
def test_a_signal_tells_once_of_the_end_of_a_terminal_that_has_just_gone(looks: str, told: bytes) -> None:
    reader, writer = os.pipe()
    pid, master = pty.fork()
    if pid == 0:
        os.set_inheritable(writer, True)
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM.format(out=writer, looks=looks)])
    os.close(writer)
    try:
        assert os.read(reader, 1) == b"0"
        os.close(master)
        assert os.read(reader, 2) == told
    finally:
        os.waitpid(pid, 0)
        os.close(reader)
