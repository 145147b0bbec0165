"""How every command parses its flags, and reports a wrong one in one line."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from splitserve.engine_core.settings.setting import Declared


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser that takes --a_b for --a-b, and whose errors are one line.

    Attributes:
        hints: hints for flags of other programs that are called differently here.
        fill: adds the flags before the first parse: of many commands one is used, the flags of the others
            need not be made.
        complete: adds what is known from elsewhere to what was parsed.
        settings: those that a file can set.
    """

    hints: Mapping[str, str] = {}
    fill: Callable[[CommandParser], None] | None = None
    complete: Callable[[Any], None] | None = None
    settings: tuple[Declared, ...] = ()

    # Typeshed's signature has overloads that cannot be repeated; every caller here uses this one.
    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse; an unrecognised word is an error of the command to which it was given."""
        self.fill_now()
        words = _with_dashes(sys.argv[1:] if args is None else args)
        if self._subparsers is not None:
            self._check_own(words)
        else:
            self._check_short(words)
        parsed, left = super().parse_known_args(words, namespace)
        if left:
            self._refuse(next((word for word in left if word.startswith("-")), left[0]))
        if self.complete is not None:
            self.complete(parsed)
        return parsed, []

    def fill_now(self) -> None:
        """Add the flags that are not there yet."""
        if self.fill is not None:
            fill, self.fill = self.fill, None
            fill(self)

    def commands(self) -> dict[str, CommandParser]:
        """Return the parsers of its commands by name, with all flags."""
        self.fill_now()
        groups = self._subparsers._group_actions if self._subparsers is not None else []
        found = {name: parser for group in groups for name, parser in dict(group.choices or {}).items()}
        for parser in found.values():
            parser.fill_now()
        return found

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

    def _check_short(self, words: Sequence[str]) -> None:
        """Refuse the first letters of a flag with one dash, which argparse would take for it: -t for -tp."""
        known = self._option_string_actions
        for word in words:
            if word == "--":
                return
            # Numbers and texts are values.
            if not re.match("-[a-zA-Z]", word) or " " in word or word.partition("=")[0] in known:
                continue
            # A value may stand right behind a flag of one letter.
            letter = known.get(word[:2])
            if letter is None or letter.nargs == 0:
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
