"""The detokenizer of requests that want no text."""

from __future__ import annotations

from collections.abc import Sequence


class SilentDetokenizer:
    """Gives no text, and costs nothing."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Return no text."""
        return ""

    def finish(self) -> str:
        """Return no text."""
        return ""

    def state(self) -> None:
        """Return that native code cannot go on with it."""

    def resume(self, held: bytes) -> None:
        """Do nothing: it is never handed over."""

    def holds_back(self) -> bool:
        """Return that nothing has begun."""
        return False
