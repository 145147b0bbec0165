"""One adapter (LoRA) of an engine: what it is, and whether rows may use it now."""

from __future__ import annotations

from dataclasses import dataclass

from splitserve.engine_core.ipc.worker_messages import NO_ADAPTER


@dataclass(slots=True, eq=False)
class Adapter:
    """One adapter; owned by the engine's thread.

    Attributes:
        name: that requests ask for.
        path: its directory, as the workers see it.
        key: unlike that of any adapter before, of the same name too: who may share its KV.
        digest: of its files; "" until it was loaded for the first time.
        slot: in the workers' memory, from when it is sent there.
        is_loaded: the workers have it.
        is_leaving: its rows go on, but no others begin.
        last_used: number of the last step that began a row of it.
        problem: why it cannot be loaded.
    """

    name: str
    path: str
    key: str
    digest: str = ""
    slot: int = NO_ADAPTER
    is_loaded: bool = False
    is_leaving: bool = False
    last_used: int = -1
    problem: str = ""

    @property
    def takes_rows(self) -> bool:
        """Whether a row may begin now."""
        return self.is_loaded and not self.is_leaving
