"""The parser of every command: a wrong flag gets one line, not the page that --help is."""

from __future__ import annotations

import argparse
from typing import NoReturn


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and one line that names the flag."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")
