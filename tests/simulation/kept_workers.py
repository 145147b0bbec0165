"""Workers that outlive their engine: a successor finds their KV cache, and the ledger of what it holds."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from splitserve.engine_core.executor.simulated.executor import SimulatedExecutor
from splitserve.engine_core.executor.simulated.model import SimulatedModel
from splitserve.engine_core.executor.simulated.worker import SimulatedWorker
from splitserve.engine_core.ipc.worker_messages import KVCacheReady
from splitserve.engine_core.kept.ledger import Ledger
from tests.simulation.world import World


class KeptWorkers(NamedTuple):
    """A worker without an engine; whoever has it closes the descriptor of its ledger."""

    worker: SimulatedWorker
    descriptor: int

    def end(self) -> None:
        """They are not needed any more."""
        os.close(self.descriptor)


class KeepingExecutor(SimulatedExecutor):
    """A simulated executor that may take over the worker of a predecessor, and leave it to a successor."""

    def __init__(self, world: World, model: SimulatedModel, kept: KeptWorkers | None, **how: Any) -> None:
        super().__init__(world, model, **how)
        self._keeps = kept is not None
        if kept is None:
            self._ledger = Ledger.create()
            return
        self._worker = kept.worker
        # The batch is forgotten, what the last steps have written is not.
        for row in list(self._worker._occupied):
            self._worker._free(row)
        self._ledger = Ledger(kept.descriptor)

    def init_kv_cache(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        if self._keeps:
            self._reply(KVCacheReady(num_blocks), 0.0)
        else:
            super().init_kv_cache(num_blocks, num_host_blocks)

    def restart(self) -> None:
        self._keeps = False
        self._ledger.clear()
        super().restart()

    def ledger(self) -> Ledger:
        return self._ledger

    def keep(self) -> KeptWorkers | None:
        """The engine has died: return the worker, unless that is lost, too."""
        kept = None if self._is_lost else KeptWorkers(self._worker, os.dup(self._ledger.descriptor))
        self._ledger.close()
        return kept

    def end(self) -> None:
        """The worker ends with its engine."""
        self._ledger.close()
