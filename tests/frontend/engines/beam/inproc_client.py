"""An engine client without sockets: the real session, engine and worker, one call after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.executor.inproc import InprocExecutor
from splitserve.engine_core.ipc.messages import Abort, AddRequest
from splitserve.engine_core.ipc.worker_messages import KVCacheReady, ModelRunnerOutput
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.engine_core.sequence_sampling import MAX_STEP_LOGPROBS
from splitserve.frontend.engines.beam.driver import BeamRun
from splitserve.frontend.engines.connection.client import EngineClient
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.connection.session import EngineSession
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.text.model_assets import load_model_assets
from splitserve.worker.config import WorkerConfig
from splitserve.worker.worker import Worker
from tests.frontend.engines.messages import ready

_FRONTEND = b"f"


class InprocClient(EngineClient):
    """What a search calls of EngineClient; integrity is checked after every step of the engine.

    Attributes:
        num_computed: tokens the engine's steps have computed.
        served: the model.
    """

    def __init__(self, checkpoint: Path, *, num_blocks: int = 128, block_size: int = 4) -> None:
        config = WorkerConfig(
            model=str(checkpoint),
            dtype="float32",
            num_threads=1,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            block_size=block_size,
        )
        worker = Worker(config)
        model = worker.load().model
        # As much memory, whichever way its layers share blocks.
        num_blocks *= 1 + model.num_window_groups
        self._executor = InprocExecutor(worker)
        self._executor.init_kv_cache(num_blocks)
        assert isinstance(self._executor.receive()[0], KVCacheReady)
        limits = SchedulerConfig(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=model.max_model_len,
            block_size=block_size,
            num_blocks=num_blocks,
        )
        self.num_computed = 0
        self.engine = EngineCore(limits, model, epoch=1, clock=ManualClock())
        self.session = EngineSession("test", "0")
        self.session.receive(ready(model=model), 0.0)
        self.served = ServedModel(("m",), model, load_model_assets(model), 1, 8, MAX_STEP_LOGPROBS, 0)

    def open(self, requests: Sequence[AddRequest], wake: Callable[[], None]) -> list[OpenSequence]:
        """Send requests and run them to their end."""
        sources = [
            self.session.open(msgspec.structs.replace(request, handle=self.session.next_handle()), wake)
            for request in requests
        ]
        self._send()
        while self.engine.has_requests or self.engine.num_steps_in_flight:
            self._turn()
        return sources

    def abort(self, sequences: Iterable[OpenSequence]) -> None:
        """End what is open."""
        self.session.abort([sequence.handle for sequence in sequences])
        self._send()

    async def search(self, prompt: list[int], sampling: SamplingParams) -> list[OutputDelta]:
        """Run one beam search."""
        request = GenerationRequest("r", prompt, sampling)
        return await BeamRun(request, self.served, self).run()

    def _send(self) -> None:
        while self.session.outbox:
            message = self.session.outbox.popleft()
            if isinstance(message, AddRequest):
                self.engine.add(_FRONTEND, message)
            elif isinstance(message, Abort):
                self.engine.abort(_FRONTEND, message.handles)

    def _turn(self) -> None:
        while self.engine.num_steps_in_flight < 2 and (step := self.engine.plan()) is not None:
            self.num_computed += sum(memoryview(step.num_tokens).cast("i"))
            self._executor.submit(step)
        for message in self._executor.receive():
            assert isinstance(message, ModelRunnerOutput)
            self.engine.apply(message)
            self.engine.check_integrity()
        if (outputs := self.engine.take_outputs().get(_FRONTEND)) is not None:
            self.session.receive(outputs, 0.0)
            self.session.sequences.wake_up(0.0)
