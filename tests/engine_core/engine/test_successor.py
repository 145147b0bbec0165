"""An engine dies at any moment; its successor finds the prefixes in the workers' memory, and only right ones.

The verified worker compares the KV that each row attends to with the row's own tokens, so a block that is
found under a wrong hash fails the step that uses it.
"""

from __future__ import annotations

import os
import random
import weakref

import pytest

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.executor.simulated.model import SimulatedModel
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.kept.ledger import Ledger
from splitserve.engine_core.kv_cache.prefix_index import PrefixIndex
from tests.engine_core.engine_driver import EPOCH, EngineDriver, Tracked

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfds")
CONFIG = SchedulerConfig(
    max_num_seqs=4, max_num_batched_tokens=64, max_model_len=160, num_blocks=40, block_size=4
)


class MortalDriver(EngineDriver):
    """An engine with a ledger, which can die and be succeeded by another on the same worker."""

    def __init__(
        self,
        config: SchedulerConfig,
        depth: int,
        sliding_window: int = 0,
        group_windows: tuple[int, ...] = (),
    ) -> None:
        super().__init__(config, depth=depth, sliding_window=sliding_window, group_windows=group_windows)
        self._model = SimulatedModel(
            rule=self.rule,
            max_model_len=config.max_model_len,
            block_size=config.block_size,
            sliding_window=sliding_window,
            group_windows=group_windows,
        ).info()
        self.memory = Ledger.create()
        # Each is a descriptor, and there are many lives in a run.
        weakref.finalize(self, self.memory.close)
        self._own_memory = self.memory
        self.engine = self._new_engine()

    def check(self) -> None:
        """Compare bookkeeping and ledger; events are not told, for a successor does not know the tokens."""
        self.engine.check_integrity()
        held = self.read()
        index = self.engine.scheduler.kv.cache.index
        assert held.items() <= index._hash_of.items()
        if not self.config.num_host_blocks:
            assert len(held) == len(index)

    def read(self) -> dict[int, bytes]:
        """What the ledger says."""
        held = Ledger(os.dup(self.memory.descriptor))
        found = held.open(self.config.num_blocks, self.config.block_size)
        held.close()
        assert found is not None
        return found.hash_of

    def die(self) -> None:
        """Lose the engine with all it knew; the worker ends its steps, and frees its rows."""
        self.executor._due.clear()
        for row in sorted(self.executor._worker._occupied):
            self.executor._worker._free(row)
        self.engine = self._new_engine()
        self.check()
        for sequence in self.sequences.values():
            if sequence.is_open:
                self._resume(sequence)

    def _resume(self, sequence: Tracked) -> None:
        sequence.started = None
        self.engine.add(
            sequence.frontend,
            AddRequest(
                sequence.handle,
                f"request-{sequence.handle}",
                pack_int32(sequence.prompt),
                sequence.sampling,
                resume_token_ids=pack_int32(sequence.output),
                continues=True,
            ),
        )

    def _new_engine(self) -> EngineCore:
        if self._own_memory is not self.memory:
            self._own_memory.close()
        self._own_memory = Ledger(os.dup(self.memory.descriptor))
        weakref.finalize(self, self._own_memory.close)
        return EngineCore(self.config, self._model, EPOCH, self.clock, ledger=self._own_memory)


def cached_tokens(sequence: Tracked) -> int:
    assert sequence.started is not None
    return sequence.started.num_cached_tokens


def loads_of(engine: EngineCore) -> int:
    offload = engine.scheduler.kv.cache.offload
    return offload.num_loaded if offload is not None else 0


def test_a_resumed_request_computes_its_last_block_only() -> None:
    driver = MortalDriver(CONFIG, depth=2)
    sequence = driver.add(range(1, 40), max_tokens=60, ignore_eos=True)
    while len(sequence.output) < 25:
        driver.turn()
    num_known = len(sequence.prompt) + len(sequence.output)
    driver.die()
    driver.steps.clear()
    driver.run()
    (row,) = driver.steps[0].new_rows
    # What was in flight may have filled a block that the engine never heard of.
    assert row.num_computed_tokens >= num_known - 1 - CONFIG.block_size


def test_nothing_is_found_after_a_reset() -> None:
    driver = MortalDriver(CONFIG, depth=1)
    driver.add(range(1, 40), max_tokens=8, ignore_eos=True)
    driver.run()
    driver.engine.reset_prefix_cache()
    driver.die()
    assert driver.read() == {}
    again = driver.add(range(1, 40), max_tokens=8, ignore_eos=True)
    driver.run()
    assert cached_tokens(again) == 0


def test_a_prefix_of_another_tenant_is_not_found_by_the_successor_either() -> None:
    driver = MortalDriver(CONFIG, depth=1)
    for tenant in ("a", "b"):
        driver.add(range(1, 40), tenant="a", max_tokens=8, ignore_eos=True)
        driver.run()
        driver.die()
        found = driver.add(range(1, 40), tenant=tenant, max_tokens=8, ignore_eos=True)
        driver.run()
        assert (cached_tokens(found) > 0) is (tenant == "a")


@pytest.mark.parametrize("num_host_blocks", [0, 30])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(("window", "group_windows"), [(0, ()), (12, ()), (0, (20, 12))])
def test_tokens_are_those_of_an_undisturbed_run(
    num_host_blocks: int, depth: int, window: int, group_windows: tuple[int, ...]
) -> None:
    """Many deaths at any point of the loop, with preemption, evicted prefixes and loads from the tier."""
    config = SchedulerConfig(
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_model_len=120,
        num_blocks=30 * (1 + len(group_windows)),
        block_size=4,
        num_host_blocks=num_host_blocks * (1 + len(group_windows)),
    )
    num_loaded = 0
    for seed in range(12):
        chance = random.Random(seed)
        driver = MortalDriver(config, depth, window, group_windows)
        prefixes = [[chance.randrange(1, 50) for _ in range(40)] for _ in range(3)]
        for _ in range(60):
            if chance.random() < 0.3 and len(driver.sequences) < 25:
                prompt = [*chance.choice(prefixes)[: chance.randrange(1, 40)], chance.randrange(1, 50)]
                driver.add(prompt, max_tokens=chance.randrange(1, 30), ignore_eos=True)
            act = chance.random()
            if act < 0.4:
                driver.plan()
            elif act < 0.9 and driver.engine.num_steps_in_flight:
                driver.apply()
            elif act > 0.93:
                if act > 0.96:
                    # Planned, and never sent.
                    driver.engine.plan()
                num_loaded += loads_of(driver.engine)
                driver.die()
        driver.run()
        num_loaded += loads_of(driver.engine)
    assert (num_loaded > 0) is (num_host_blocks > 0)


def test_a_block_that_is_yet_to_be_loaded_does_not_count() -> None:
    memory = Ledger.create()
    memory.open(4, 16)
    memory.begin(b"s" * 32)
    index = PrefixIndex(b"s" * 32, memory)
    index.insert([b"a" * 32], [0])
    index.insert([b"b" * 32], [1], are_filled=False)
    held = Ledger(memory.descriptor).open(4, 16)
    assert held is not None
    assert held.hash_of == {0: b"a" * 32}
    assert index.block_ids() == {0, 1}
