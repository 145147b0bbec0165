"""Rank processes that outlive a test: each loads one model after another and runs the steps it is sent."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

import msgspec

from splitserve.engine_core.ipc.worker_messages import (
    AdapterLoaded,
    CompileGrammar,
    GrammarCompiled,
    KVCacheReady,
    LoadAdapter,
    ModelRunnerOutput,
    SchedulerOutput,
    WorkerReady,
)
from splitserve.engine_core.settings.worker_settings import WorkerPlace
from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.base import Device
from splitserve.worker.worker import Worker

DEADLINE_S = 120.0
T = TypeVar("T")
Command = Callable[[Worker], T]


@dataclass
class _Load:
    """Takes the place of whatever model was there before."""

    config: WorkerConfig
    make_device: Callable[[], Device] | None


@dataclass
class _Execute:
    step: SchedulerOutput

    def __call__(self, worker: Worker) -> ModelRunnerOutput:
        return worker.execute(self.step)


@dataclass
class _Compile:
    """On the rank that samples; another, which knows nothing of grammars, has nothing to say."""

    message: CompileGrammar

    def __call__(self, worker: Worker) -> GrammarCompiled | None:
        config = worker._config
        return worker.compile(self.message) if config.place.rank == config.output_rank else None


@dataclass
class _LoadAdapter:
    message: LoadAdapter

    def __call__(self, worker: Worker) -> AdapterLoaded:
        return worker.load_adapter(self.message)


@dataclass
class _InitKVCache:
    num_blocks: int
    num_host_blocks: int

    def __call__(self, worker: Worker) -> KVCacheReady:
        return worker.init_kv_cache(self.num_blocks, self.num_host_blocks)


def _serve(commands: Connection) -> None:
    """The life of a rank process: one answer per command, an exception for one that failed."""
    worker: Worker | None = None
    while (command := commands.recv()) is not None:
        try:
            if isinstance(command, _Load):
                if worker is not None:
                    worker.close()
                worker = Worker(command.config, command.make_device and command.make_device())
                commands.send(worker.load())
            else:
                commands.send(command(worker))
        except Exception as error:
            commands.send(error)


class RankPool:
    """Processes, made from one that has the libraries loaded; a model takes as many as it has ranks."""

    def __init__(self, folder: Path, size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        rooms = ("worker", "parallel.distributed", "generic.model")
        context.set_forkserver_preload([f"splitserve.worker.{room}" for room in rooms])
        self._rendezvous = (f"file://{folder}/{number}" for number in itertools.count())
        self._processes: list[BaseProcess] = []
        self._links: list[Connection] = []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._links.append(ours)

    def load(self, config: WorkerConfig, make_device: Callable[[], Device] | None = None) -> ParallelWorker:
        """Load a model on as many ranks as its config says, on the device that each of them makes.

        Raises:
            Exception: what the first rank that failed raised.
        """
        rendezvous = next(self._rendezvous)
        links = self._links[: config.num_ranks]
        for rank, link in enumerate(links):
            place = WorkerPlace(connect="", rank=rank, rendezvous=rendezvous)
            own = msgspec.structs.replace(config, place=place, num_local_ranks=config.num_ranks)
            link.send(_Load(own, make_device))
        return ParallelWorker(config, links)

    def close(self) -> None:
        for link in self._links:
            link.send(None)
        for process in self._processes:
            process.join(DEADLINE_S)
            process.kill()


class ParallelWorker:
    """What a Worker is to its callers, over several ranks.

    Attributes:
        loaded: what each rank said when it had loaded.
    """

    def __init__(self, config: WorkerConfig, links: list[Connection]) -> None:
        self.config = config
        self._links = links
        self.loaded: list[WorkerReady] = self._answers()

    def init_kv_cache(self, num_blocks: int, num_host_blocks: int = 0) -> KVCacheReady:
        return self.ask(_InitKVCache(num_blocks, num_host_blocks))[0]

    def compile(self, message: CompileGrammar) -> GrammarCompiled:
        (answer,) = (answer for answer in self.ask(_Compile(message)) if answer is not None)
        return answer

    def load_adapter(self, message: LoadAdapter) -> AdapterLoaded:
        answer, *others = self.ask(_LoadAdapter(message))
        assert all(other == answer for other in others)
        return answer

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        outputs = self.ask(_Execute(step))
        assert [output.step for output in outputs] == [step.step] * len(outputs)
        return outputs[-self.config.tensor_parallel_size]

    def ask(self, command: Command[T]) -> list[T]:
        """What each rank's worker answers; commands and answers are pickled."""
        for link in self._links:
            link.send(command)
        return self._answers()

    def _answers(self) -> list[T]:
        answers = []
        for rank, link in enumerate(self._links):
            assert link.poll(DEADLINE_S), f"rank {rank} is silent"
            answers.append(link.recv())
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers
