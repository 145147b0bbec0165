"""A queue that a greedy tenant or frontend keeps full, and what others get of it."""

from __future__ import annotations

from collections import Counter

import pytest

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.errors import OverloadedError
from splitserve.engine_core.executor.simulated.executor import SimulatedExecutor
from splitserve.engine_core.executor.simulated.model import SimulatedModel
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import AddRequest, FinishReason
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling

NUM_CONNECTIONS = 200
NUM_MODEST = 50
# Four rows and eight steps for a request: one ends every second step, and one of ten is the modest tenant's.
PERIOD = 20
SAMPLING = SequenceSampling(seed=0, max_tokens=8, ignore_eos=True)


class Crowd:
    """An engine, 200 connections of a greedy tenant that ask again at once, and one modest tenant."""

    def __init__(self, policy: str, greedy: tuple[bytes, str], modest: tuple[bytes, str]) -> None:
        config = SchedulerConfig(
            max_num_seqs=4, max_num_waiting=100, max_model_len=64, num_blocks=64, policy=policy
        )
        model, clock = SimulatedModel(max_model_len=64), ManualClock()
        self._executor = SimulatedExecutor(clock, model)
        self._executor.start()
        self._executor.init_kv_cache(config.num_blocks)
        self._executor.receive()
        self.engine = EngineCore(config, model.info(), 1, clock)
        self._sides = {"greedy": greedy, "modest": modest}
        self._side_of: dict[int, str] = {}
        self.refused: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self._num_asked = 0

    def run(self) -> None:
        """Let the modest tenant ask 50 times, and wait for its answers."""
        for step in range(PERIOD * NUM_MODEST + 400):
            # The greedy ones are first to hear of a free place.
            while sum(side == "greedy" for side in self._side_of.values()) < NUM_CONNECTIONS:
                if not self._ask("greedy"):
                    break
            if step % PERIOD == 0 and step < PERIOD * NUM_MODEST:
                self._ask("modest")
            self._step()

    def _ask(self, side: str) -> bool:
        frontend, tenant = self._sides[side]
        handle = self._num_asked = self._num_asked + 1
        prompt = pack_int32([1 + handle % 20, 2, 3])
        try:
            self.engine.add(frontend, AddRequest(handle, "", prompt, SAMPLING, tenant=tenant))
        except OverloadedError:
            self.refused[side] += 1
            return False
        self._side_of[handle] = side
        self._hear()
        return True

    def _step(self) -> None:
        output = self.engine.plan()
        if output is not None:
            self._executor.submit(output)
        for message in self._executor.receive():
            assert isinstance(message, ModelRunnerOutput)
            self.engine.apply(message)
        self._hear()

    def _hear(self) -> None:
        for outputs in self.engine.take_outputs().values():
            for finished in outputs.finished:
                side = self._side_of.pop(finished.handle)
                failed = finished.reason is FinishReason.ERROR
                assert not failed or finished.error_status == 429
                (self.refused if failed else self.finished)[side] += 1


@pytest.mark.parametrize(
    ("policy", "greedy", "modest"),
    [
        ("fair", (b"f", "greedy"), (b"f", "modest")),
        ("fcfs", (b"f", "greedy"), (b"f", "modest")),
        ("priority", (b"f", "greedy"), (b"g", "modest")),
        ("fcfs", (b"f", ""), (b"g", "")),
    ],
)
def test_who_asks_for_a_tenth_is_never_refused(
    policy: str, greedy: tuple[bytes, str], modest: tuple[bytes, str]
) -> None:
    """Without shares of the places all 50 of the modest tenant's requests meet a full queue."""
    crowd = Crowd(policy, greedy, modest)
    crowd.run()
    crowd.engine.check_integrity()
    assert crowd.refused["modest"] == 0
    assert crowd.refused["greedy"] > 0
    assert crowd.finished["modest"] == NUM_MODEST
