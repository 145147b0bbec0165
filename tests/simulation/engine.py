"""An engine-core at an address: its lives, each with the real parts of the engine and a simulated worker."""

from __future__ import annotations

import re
from collections.abc import Callable

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.executor.simulated.executor import FaultKind, ScriptedFault
from splitserve.engine_core.executor.simulated.model import SimulatedModel
from splitserve.engine_core.executor.simulated.tokens import TokenRule
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import (
    FromWorkerMessage,
    ModelRunnerOutput,
    SchedulerOutput,
)
from splitserve.engine_core.process.kill_points import reach
from splitserve.engine_core.process.progress import StartupReport
from splitserve.engine_core.server.absence.recovery import Recovery
from splitserve.engine_core.server.frontend_handler import FrontendHandler
from splitserve.engine_core.server.frontends import FrontendTable
from splitserve.engine_core.server.startup import Startup
from splitserve.engine_core.server.step_watch import StepWatch
from splitserve.engine_core.server.upkeep import NEVER, Upkeep
from tests.simulation.kept_workers import KeepingExecutor, KeptWorkers
from tests.simulation.network import Connection, send_to
from tests.simulation.world import Process, World

VOCAB_SIZE = 256
# What brings down whoever computes it, in some runs.
POISON = 255
RULE = TokenRule(vocab_size=VOCAB_SIZE, eos_token_ids=(0,), eos_probability=0.02)
MAX_MODEL_LEN = 96
# How scripted and deadly faults of a worker are worded; anything else is a step that it had to refuse.
WANTED_LOSSES = r"crashed|was lost|took longer|did not finish|lost workers"
# The bookkeeping is checked every so many rounds: always would take a third of the time.
CHECK_ROUNDS = 16
BLOCK_SIZE = 4


def engine_config(num_blocks: int, max_num_seqs: int, max_num_waiting: int, speculate: str) -> EngineConfig:
    return EngineConfig(
        model="simulated",
        executor="simulated",
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=max_num_seqs,
        max_num_waiting=max_num_waiting,
        max_num_batched_tokens=32,
        max_model_len=MAX_MODEL_LEN,
        lease_s=4.0,
        speculate=speculate,
        listen="ipc://simulated",
    )


class EngineLife(Process):
    """One engine-core process: plays the busy loop (engine_core.server.busy_loop) with the same parts.

    Attributes:
        connections: by the identity of the frontend.
        engine: None until it is ready.
        has_ended: whether it ended in good order.
    """

    def __init__(self, world: World, config: EngineConfig, epoch: int, place: EnginePlace) -> None:
        super().__init__(world)
        self._place = place
        self.connections: dict[bytes, Connection] = {}
        self.engine: EngineCore | None = None
        self.has_ended = False
        self.on_end: Callable[[], None] = lambda: None
        self._epoch = epoch
        self.executor = KeepingExecutor(
            world,
            SimulatedModel(
                rule=RULE, max_model_len=MAX_MODEL_LEN, verify=place.verifies, block_size=BLOCK_SIZE
            ),
            place.take_workers(),
            step_time_s=place.step_s,
            hang_deadline_s=6.0,
            faults=_faults(world) if place.is_fragile else [],
            survives=place.worker_survives,
        )
        self._startup = Startup(config, self.executor, StartupReport(world))
        self._table = FrontendTable(lambda identity, frame: send_to(self, identity, frame), config.lease_s)
        self.handler = FrontendHandler(config, world, epoch, self._table, self._startup, lambda: "")
        self._recovery = Recovery(self._startup, self.handler, world)
        self._step_watch = StepWatch(self.executor, world)
        self._upkeep = Upkeep(world, self.handler, self._table)
        self._drain_end_s = NEVER
        self._ends_workers = False
        self._next_s = NEVER
        self._num_rounds = 0

    # --- what happens to it ---

    def start(self) -> None:
        reach("engine.bound")
        self._startup.begin()
        self._look_again()

    def on_frame(self, identity: bytes, frame: bytes) -> None:
        self.handler.on_frame(identity, frame)
        self._round()

    def on_disconnected(self) -> None:
        self._upkeep.on_disconnect()
        self._round()

    def lose_worker(self) -> None:
        if self.engine is not None:
            self.executor.lose()
            self._round()

    def drain(self, timeout_s: float) -> None:
        """SIGTERM."""
        if self.engine is not None:
            self.handler.drain(timeout_s)
            self._drain_end_s = self.world.monotonic() + timeout_s
            self._round()

    def hand_over(self) -> None:
        """SIGUSR1."""
        if self.engine is not None:
            self.handler.hand_over("the engine is being replaced")
            self._end()

    def on_death(self) -> None:
        for connection in list(self.connections.values()):
            connection.end(orderly=self.has_ended)
        if self.engine is not None and not self._ends_workers:
            self._place.leave_workers(self.executor.keep())
        else:
            self.executor.end()
        self.on_end()

    # --- the loop ---

    def _round(self) -> None:
        if not self.is_alive:
            return
        try:
            self._attend_worker()
        except WorkerError as loss:
            if self.engine is None:
                self.kill()
                return
            self._begin_recovery(self.engine, loss)
        self._upkeep.run(self.engine)
        self.handler.send_outputs()
        self._num_rounds += 1
        if self.engine is not None and self._num_rounds % CHECK_ROUNDS == 0:
            self.engine.check_integrity()
        self._end_drain()
        self._look_again()

    def _attend_worker(self) -> None:
        timeout_s = self.executor.poll_timeout_s()
        if timeout_s is not None and timeout_s <= 0:
            for message in self.executor.receive():
                self._on_worker_message(message)
        if self.engine is not None and not self._recovery.is_active:
            while (output := self.engine.plan()) is not None:
                reach("engine.step_planned")
                if not self._place.engine_survives(output):
                    self.kill()
                    return
                self.executor.submit(output)
                reach("engine.step_submitted")
                self._upkeep.on_work()
            self._step_watch.look(self.engine)

    def _begin_recovery(self, engine: EngineCore, loss: WorkerError) -> None:
        assert re.search(WANTED_LOSSES, str(loss)), f"a worker refused a step: {loss}"
        self._place.num_worker_losses += 1
        try:
            self._recovery.begin(engine, loss)
        except WorkerError:
            self.kill()

    def _on_worker_message(self, message: FromWorkerMessage) -> None:
        if self.engine is None:
            loaded = self._startup.on_message(message)
            if loaded is not None:
                self.engine = EngineCore(
                    loaded.scheduler,
                    loaded.model,
                    self._epoch,
                    self.world,
                    secret=b"s" * 32,
                    ledger=self.executor.ledger(),
                )
                self.handler.serve(self.engine, loaded)
        elif self._recovery.is_active:
            self._recovery.on_message(message)
        else:
            assert isinstance(message, ModelRunnerOutput)
            reach("engine.output_received")
            self.engine.apply(message)
            reach("engine.output_applied")

    def _end_drain(self) -> None:
        if not self.handler.phase.is_draining or self.engine is None:
            return
        if self.engine.has_requests:
            if self.world.monotonic() < self._drain_end_s:
                return
            self.handler.hand_over("the engine is shutting down")
        self._ends_workers = True
        self._end()

    def _end(self) -> None:
        self.has_ended = True
        self.kill()

    def _look_again(self) -> None:
        """Plan the next round for when the loop's poll would return."""
        if not self.is_alive:
            return
        now_s = self.world.monotonic()
        due_s = min(self._upkeep.next_due_s(self.engine), self._drain_end_s)
        if self.engine is not None:
            due_s = min(due_s, self._step_watch.next_due_s(self.engine))
        timeout_s = self.executor.poll_timeout_s()
        if timeout_s is not None:
            due_s = min(due_s, now_s + timeout_s)
        due_s = max(due_s, now_s)
        if due_s < self._next_s:
            self._next_s = due_s
            # As the poll's milliseconds, rounded up.
            self.after(due_s - now_s + 1e-4, self._on_timer)

    def _on_timer(self) -> None:
        self._next_s = NEVER
        self._round()


class EnginePlace:
    """An address and whoever listens there: a supervisor starts the next life when one has ended.

    Attributes:
        life: the latest.
        step_s: how long a step takes.
        verifies: whether workers look into their KV cache before they compute.
        is_fragile: whether workers crash and hang by themselves.
        next_dies_at: the kill point that is set for the next life; "" for none.
        num_deaths: lives that did not end in good order.
        num_worker_losses: how often a life lost its worker.
        num_takeovers: how often a life took over the workers of the one before.
        num_poisoned: how much of both the poisoned request brought about.
    """

    def __init__(self, world: World, config: EngineConfig, *, is_fragile: bool, dies_of_poison: bool) -> None:
        """Start the first life; a poisoned request is the end of the engine, or else of its worker."""
        self._world = world
        self._config = config
        self._dies_of_poison = dies_of_poison
        self.is_fragile = is_fragile
        self.step_s = world.rng.choice([0.02, 0.05, 0.1])
        self.verifies = world.chance(0.5)
        self.num_worker_losses = self.num_poisoned = self.num_takeovers = 0
        self._workers: KeptWorkers | None = None
        self._epoch = world.rng.randrange(1, 10**6)
        self.restart_s = (0.05, 0.5)
        self.num_deaths = 0
        self.next_dies_at = ""
        self.life = self._start()

    def server(self) -> tuple[EngineLife, Process] | None:
        """Who listens at the address."""
        return (self.life, self.life) if self.life.is_alive and not self.life.has_ended else None

    def leave_workers(self, workers: KeptWorkers | None) -> None:
        """Keep workers for the next life; sometimes they go down with their engine."""
        self.end_workers()
        self._workers = workers
        if self._world.chance(0.2):
            self.end_workers()

    def take_workers(self) -> KeptWorkers | None:
        workers, self._workers = self._workers, None
        self.num_takeovers += workers is not None
        return workers

    def end_workers(self) -> None:
        if self._workers is not None:
            self._workers.end()
            self._workers = None

    def close(self) -> None:
        """End everything."""
        if self.life.is_alive:
            self.life.executor.end()
        self.end_workers()

    def engine_survives(self, output: SchedulerOutput) -> bool:
        return self._survives(output, self._dies_of_poison)

    def worker_survives(self, output: SchedulerOutput) -> bool:
        return self._survives(output, not self._dies_of_poison)

    def _survives(self, output: SchedulerOutput, is_deadly: bool) -> bool:
        if not is_deadly or not any(POISON in unpack_int32(row.token_ids[:4]) for row in output.new_rows):
            return True
        self.num_poisoned += 1
        return False

    def _start(self) -> EngineLife:
        self._epoch += 1
        life = EngineLife(self._world, self._config, self._epoch, self)
        life.on_end = self._ended
        life.after(self._world.rng.uniform(0.0, 0.2), life.start)
        return life

    def _ended(self) -> None:
        if not self.life.has_ended:
            self.num_deaths += 1
        self._world.after(self._world.rng.uniform(*self.restart_s), self._restart)

    def _restart(self) -> None:
        self.life = self._start()
        self.life.dies_at, self.next_dies_at = self.next_dies_at, ""


def _faults(world: World) -> list[ScriptedFault]:
    kinds = (FaultKind.CRASH, FaultKind.HANG, FaultKind.OUT_OF_MEMORY)
    steps = [world.rng.randrange(1, 200) for _ in range(world.rng.randrange(3))]
    return [ScriptedFault(world.rng.choice(kinds), step) for step in steps]
