"""Whether there is memory for weights, asked before any of it is taken."""

from __future__ import annotations

from splitserve.engine_core.errors import ModelLoadError
from splitserve.engine_core.settings.flag_values import shown_bytes


class NoRoomError(ModelLoadError):
    """Weights need more memory than there is.

    Attributes:
        free_bytes: what there is.
    """

    def __init__(self, need_bytes: int, free_bytes: int) -> None:
        super().__init__(f"weights need {shown_bytes(need_bytes)}, {shown_bytes(free_bytes)} are free")
        self.free_bytes = free_bytes


def check_room(need_bytes: int, free_bytes: int) -> None:
    """Refuse weights that the kernel would otherwise end a process for.

    Raises:
        NoRoomError: they need more than is free.
    """
    if need_bytes > free_bytes:
        raise NoRoomError(need_bytes, free_bytes)
