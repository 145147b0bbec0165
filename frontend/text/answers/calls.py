"""The calls of one answer as they are found: who may be called, and how many there may be."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from splitserve.frontend.text.answers.deltas import AnswerDelta, CallArguments, CallStarted
from splitserve.frontend.text.answers.text_source import NotACallError

MAX_CALLS: Final = 128
_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,256}")

# Names of the parameters of a tool -> the types that its schema names for each, () for none.
ParameterTypes = Mapping[str, tuple[str, ...]]


class Calls:
    """Counts and gives out the calls of one answer."""

    def __init__(self, tools: Mapping[str, ParameterTypes], give: Callable[[AnswerDelta], None]) -> None:
        """Start with no call.

        Args:
            tools: parameters of the request's tools, by the name of the tool.
            give: takes what is new.
        """
        self._tools = tools
        self._give = give
        self._num_started = 0

    @property
    def is_full(self) -> bool:
        """Whether there may be no more."""
        return self._num_started == MAX_CALLS

    def check(self, name: str, *, known_only: bool) -> None:
        """Check a name before its call is begun.

        Raises:
            NotACallError: no function has such a name, it is no tool of the request although it has to be, or
                there are too many calls.
        """
        if self.is_full or not _NAME.fullmatch(name) or (known_only and name not in self._tools):
            raise NotACallError

    def start(self, name: str) -> None:
        """Begin a call with a name that check() has passed."""
        self._num_started += 1
        self._give(CallStarted(self._num_started - 1, name))

    def add_arguments(self, text: str) -> None:
        """Add to the arguments of the call that was begun last."""
        if text:
            self._give(CallArguments(self._num_started - 1, text))

    def types_of(self, name: str, parameter: str) -> tuple[str, ...]:
        """Return the types that a parameter may have; () if nothing is known of it."""
        return self._tools.get(name, {}).get(parameter, ())
