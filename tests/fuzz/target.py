"""What every fuzz target has: something valid to begin with, a way to change it, and a way to run it."""

from __future__ import annotations

from random import Random
from typing import Protocol

from tests.fuzz.case import Case


class Target(Protocol):
    """Takes cases one after the other; a case decides everything that happens in it.

    Attributes:
        what: what its executions are: "frames", "files", "requests".
    """

    what: str

    def draw(self, rng: Random) -> Case:
        """Make a new case."""

    def mutate(self, rng: Random, piece: bytes) -> bytes:
        """Change one piece of a case, for a search that is guided by coverage."""

    def run(self, case: Case) -> int:
        """Run a case; return how many executions it was.

        Raises:
            Exception: a finding, whatever its type.
        """

    def finish(self) -> str:
        """Check what can only be checked at the end; return what else there is to tell.

        Raises:
            Exception: a finding, whatever its type.
        """

    def close(self) -> None:
        """End what it has started, in any case."""
