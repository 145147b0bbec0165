"""How do the messages of many ranks become those of one worker? No I/O.

heard                                      what the engine hears
WorkerHello of every rank                  one of them
LoadProgress, once every rank has begun    the bytes of all
WorkerReady of every rank                  one: the least memory, the largest block
KVCacheReady of every rank                 one: the slowest moves
MemoryNeed of every rank                   one: the least memory, the largest need
MemoryReleased of every rank               one of them
AdapterLoaded of every rank                one: that of a rank which could not load it, if there is one
ModelRunnerOutput of the output rank       that; the others' only show that they have done the step
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

import msgspec

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from splitserve.engine_core.ipc.worker_messages import (
    AdapterLoaded,
    FromWorkerMessage,
    KVCacheReady,
    LoadProgress,
    MemoryNeed,
    MemoryReleased,
    ModelRunnerOutput,
    WorkerHello,
    WorkerReady,
)

M = TypeVar("M", WorkerHello, LoadProgress, WorkerReady, KVCacheReady, MemoryNeed, MemoryReleased)


class Ranks:
    """Merges the ranks' messages, and knows which rank owes a response and by when.

    Args:
        num_ranks: of the engine.
        output_rank: whose response to a step counts.
        step_timeout_s: longest time of one step.
        clock: for the deadlines.
        where: names the node of a rank; "" for this machine.
    """

    def __init__(
        self,
        num_ranks: int,
        output_rank: int,
        step_timeout_s: float,
        clock: Clock,
        where: Callable[[int], str] = lambda rank: "",
    ) -> None:
        self._where = where
        self._num_ranks = num_ranks
        self._output_rank = output_rank
        self._step_timeout_s = step_timeout_s
        self._clock = clock
        self._hellos: dict[int, WorkerHello] = {}
        self._progress: dict[int, LoadProgress] = {}
        self._loaded: dict[int, WorkerReady] = {}
        self._caches: dict[int, KVCacheReady] = {}
        self._needs: dict[int, MemoryNeed] = {}
        self._released: dict[int, MemoryReleased] = {}
        # By number, of the ranks that have answered.
        self._adapters: dict[int, list[AdapterLoaded]] = {}
        # Per rank: number and deadline of each step it has not answered, oldest first.
        self._owed: list[deque[tuple[int, float]]] = [deque() for _ in range(num_ranks)]

    @property
    def have_met(self) -> bool:
        """Whether every rank is connected for good, with the engine and with the others."""
        # The first exchange between devices, in the warm-up, is the last to need the meeting place.
        heard = self._hellos if self._num_ranks == 1 else self._caches
        return len(heard) == self._num_ranks

    @property
    def are_serving(self) -> bool:
        """Whether every rank has a KV cache, or had one until it was to release it."""
        return len(self._caches) == self._num_ranks

    def name(self, rank: int) -> str:
        """What a rank is called in errors."""
        node = self._where(rank)
        name = "the worker" if self._num_ranks == 1 else f"the worker of rank {rank}"
        return f"{name} on node {node}" if node else name

    def expect_caches(self) -> None:
        """Every rank is about to be told to allocate a KV cache, for the first time or again."""
        self._caches.clear()

    def submit(self, step: int) -> None:
        """Note that every rank was sent a step."""
        deadline_s = self._new_deadline_s()
        for owed in self._owed:
            owed.append((step, deadline_s))

    def take(self, rank: int, message: FromWorkerMessage) -> FromWorkerMessage | None:
        """Note what a rank sent; return the message for the engine, if there is one.

        Raises:
            WorkerError: the rank speaks another version, or answers another step than it owes.
        """
        match message:
            case ModelRunnerOutput(step=step):
                self._end_step(rank, step)
                return message if rank == self._output_rank else None
            case WorkerHello():
                self._check_version(rank, message)
                return self._last(self._hellos, rank, message)
            case LoadProgress():
                return self._add_progress(rank, message)
            case WorkerReady():
                return self._join_loaded(rank, message)
            case KVCacheReady():
                slowest = max([message, *self._caches.values()], key=lambda ready: ready.move_block_ns)
                return slowest if self._last(self._caches, rank, message) else None
            case MemoryNeed():
                return self._join_needs(rank, message)
            case MemoryReleased():
                return self._join_released(rank, message)
            case AdapterLoaded():
                return self._join_adapters(message)
        return message

    def deadline_s(self) -> float | None:
        """When a rank that owes a response has to have given it; None if none does."""
        return min((owed[0][1] for owed in self._owed if owed), default=None)

    def check_deadlines(self) -> None:
        """Raise WorkerError, naming the ranks, if a response is overdue."""
        now = self._clock.monotonic()
        silent = [rank for rank, owed in enumerate(self._owed) if owed and owed[0][1] <= now]
        if silent:
            step = min(self._owed[rank][0][0] for rank in silent)
            names = " and ".join(map(self.name, silent))
            raise WorkerError(f"{names} did not finish step {step} within {self._step_timeout_s:g} s")

    def discount(self, pause_s: float) -> None:
        """Give every rank more time: the engine itself stood still for so long."""
        for owed in self._owed:
            for i, (step, deadline_s) in enumerate(owed):
                owed[i] = (step, deadline_s + pause_s)

    def owing(self) -> str:
        """Name the ranks that owe the oldest step."""
        oldest = min((owed[0][0] for owed in self._owed if owed), default=None)
        late = [rank for rank, owed in enumerate(self._owed) if owed and owed[0][0] == oldest]
        return " and ".join(map(self.name, late))

    def _end_step(self, rank: int, step: int) -> None:
        owed = self._owed[rank]
        expected = owed.popleft()[0] if owed else None
        if step != expected:
            raise WorkerError(f"{self.name(rank)} answered step {step}, expected {expected}")
        if owed:
            # The next step begins only now.
            owed[0] = (owed[0][0], self._new_deadline_s())

    def _new_deadline_s(self) -> float:
        return self._clock.monotonic() + self._step_timeout_s

    def _check_version(self, rank: int, hello: WorkerHello) -> None:
        version = hello.protocol_version
        if version != PROTOCOL_VERSION:
            raise WorkerError(f"{self.name(rank)} speaks protocol {version}, this engine {PROTOCOL_VERSION}")

    def _last(self, heard: dict[int, M], rank: int, message: M) -> M | None:
        """Keep a message; return it if every rank has sent one by now."""
        heard[rank] = message
        return message if len(heard) == self._num_ranks else None

    def _add_progress(self, rank: int, message: LoadProgress) -> LoadProgress | None:
        if self._last(self._progress, rank, message) is None:
            return None
        parts = self._progress.values()
        return LoadProgress(sum(part.loaded_bytes for part in parts), sum(part.total_bytes for part in parts))

    def _join_needs(self, rank: int, message: MemoryNeed) -> MemoryNeed | None:
        if self._last(self._needs, rank, message) is None:
            return None
        parts = list(self._needs.values())
        return msgspec.structs.replace(
            message,
            free_bytes=min(part.free_bytes for part in parts),
            weights_bytes=max(part.weights_bytes for part in parts),
            activation_bytes=max(part.activation_bytes for part in parts),
            block_bytes=max(part.block_bytes for part in parts),
            available_bytes=min(part.available_bytes for part in parts),
            alternatives={
                name: max(part.alternatives[name] for part in parts) for name in message.alternatives
            },
        )

    def _join_released(self, rank: int, message: MemoryReleased) -> MemoryReleased | None:
        if self._last(self._released, rank, message) is None:
            return None
        # Not any earlier: they may be told to allocate again before the last of them has answered.
        self._released.clear()
        return message

    def _join_adapters(self, message: AdapterLoaded) -> AdapterLoaded | None:
        answers = self._adapters.setdefault(message.number, [])
        answers.append(message)
        if len(answers) < self._num_ranks:
            return None
        del self._adapters[message.number]
        if len({answer.digest for answer in answers}) > 1 and not any(answer.error for answer in answers):
            return AdapterLoaded(message.number, error="the machines of the ranks have different files")
        return max(answers, key=lambda answer: answer.error)

    def _join_loaded(self, rank: int, message: WorkerReady) -> WorkerReady | None:
        if self._last(self._loaded, rank, message) is None:
            return None
        parts = self._loaded.values()
        return msgspec.structs.replace(
            self._loaded[0],
            block_bytes=max(part.block_bytes for part in parts),
            available_bytes=min(part.available_bytes for part in parts),
            load_s=max(part.load_s for part in parts),
        )
