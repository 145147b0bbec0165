"""How every command parses its flags, and reports a wrong one in one line."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser that takes --a_b for --a-b, and whose errors are one line.

    Attributes:
        hints: hints for flags of other programs that are called differently here.
    """

    hints: Mapping[str, str] = {}

    # Typeshed's signature has overloads that cannot be repeated; every caller here uses this one.
    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse; an unrecognised word is an error of the command to which it was given."""
        words = _with_dashes(sys.argv[1:] if args is None else args)
        if self._subparsers is not None:
            self._check_own(words)
        parsed, left = super().parse_known_args(words, namespace)
        if left:
            self._refuse(next((word for word in left if word.startswith("-")), left[0]))
        return parsed, []

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and one line that names the flag."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def _check_own(self, words: Sequence[str]) -> None:
        """Refuse a wrong flag before the command, since its value would be mistaken for the command."""
        for word in words:
            if not word.startswith("-"):
                return
            if word.partition("=")[0] not in self._option_string_actions:
                self._refuse(word)

    def _refuse(self, word: str) -> NoReturn:
        if not word.startswith("-"):
            self.error(f"unexpected argument {word!r}")
        name = word.partition("=")[0]
        near = difflib.get_close_matches(name, self._option_string_actions, n=1)
        hint = self.hints.get(name) or (f"did you mean {near[0]}?" if near else "")
        self.error(f"unknown flag {name}" + (f", {hint}" if hint else ""))


def _with_dashes(words: Sequence[str]) -> list[str]:
    """Return the words with dashes in flags: --max_model_len=4 becomes --max-model-len=4."""
    return [_flag_with_dashes(word) if word.startswith("--") else word for word in words]


def _flag_with_dashes(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value
