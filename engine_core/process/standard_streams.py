"""Are stdin, stdout and stderr there? A shell's `<&-` closes them, and the next socket takes the number."""

from __future__ import annotations

import os
import sys


def open_standard_streams() -> None:
    """Let /dev/null stand in for those that were closed; called first of all by a command.

    Children expect nothing else at these numbers, and what is passed on to them must have others.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    # Python has none where the descriptor was closed, and prints to stdout what was meant for stderr.
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
