"""One run: which frontends, engines and clients there are, what goes wrong, and what must hold in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import pytest

from splitserve.engine_core.process import kill_points
from splitserve.engine_core.suspects import MAX_SUSPECTS
from tests.simulation.client import Client, make_client
from tests.simulation.engine import EnginePlace, engine_config
from tests.simulation.frontend import FrontendLife
from tests.simulation.world import World

# Faults come until then; afterwards all is well, and everything has to end.
FAULTS_S = 6.0
END_S = 150.0
# Two, and one for each that is suspected beside it and tried first, in every place.
MAX_POISONED = 12
# The points that lie in what is simulated: not how workers are started, nor how they outlive an engine.
ENGINE_POINTS = (
    "engine.bound",
    "engine.request_added",
    "engine.step_planned",
    "engine.step_submitted",
    "engine.output_received",
    "engine.output_applied",
    "engine.outputs_sent",
    "engine.recovering",
    "engine.handing_over",
)
FRONTEND_POINTS = (
    "frontend.request_sent",
    "frontend.outputs_received",
    "frontend.resuming",
    "frontend.resumed",
)
POINTS = ENGINE_POINTS + FRONTEND_POINTS


class Outcome(NamedTuple):
    """What a run came to.

    Attributes:
        problems: what did not hold, in words; nothing in a good run.
        reached, killed: how often each kill point was reached, and was the death of a process.
        num_faults: what went wrong on purpose.
        simulated_s: how long it took, there.
    """

    problems: list[str]
    reached: dict[str, int]
    killed: dict[str, int]
    num_faults: int
    num_migrations: int
    num_clients: int
    simulated_s: float


class Run:
    """Everything in one seed."""

    def __init__(self, seed: int, point: str = "", speculate: str = "none") -> None:
        """Plan it.

        Args:
            seed: of all that happens.
            point: every process dies there the first time that it gets there, if it is given.
            speculate: as engines have it; simulated workers draft in their own way, whatever the method.
        """
        self.world = world = World(seed)
        self._point = point
        self._rng = rng = world.rng
        self._begin_s = world.monotonic()
        self._problems: list[str] = []
        self._max_migrations = rng.choice([0, 1, 3, 3, 3, 100])
        self._wait_s = rng.choice([0.0, 1.0, 30.0, 30.0, 30.0])
        self._repeat_probability = rng.choice([0.0, 0.0, 0.05])
        self._has_poison = rng.random() < 0.15
        config = engine_config(
            num_blocks=rng.choice([25, 60, 200]),
            max_num_seqs=rng.choice([1, 4, 16]),
            max_num_waiting=rng.choice([2, 100, 100]),
            speculate=speculate,
        )
        is_fragile, dies_of_poison = rng.random() < 0.4, rng.random() < 0.5
        self._places = [
            EnginePlace(world, config, is_fragile=is_fragile, dies_of_poison=dies_of_poison)
            for _ in range(rng.choice([1, 2, 2, 3]))
        ]
        self._frontends = [self._new_frontend(i, 0) for i in range(rng.choice([1, 1, 2, 3]))]
        self.clients = self._plan_clients()
        self.num_faults = 0
        # Of them, those that may cost a request an engine, and those in which somebody only stands still.
        self._num_breaks = self._num_stalls = 0

    def run(self) -> Outcome:
        """Let it happen."""
        world = self.world
        if self._point:
            self._aim()
        self._plan_faults()
        world.after(FAULTS_S, self._heal)
        with _kill_points(world.reach):
            world.run(self._begin_s + END_S, self._is_over)
            took_s = world.monotonic() - self._begin_s
            # Long enough for aborts to arrive, or for the leases of dead frontends to run out.
            has_dead = any(frontend.life for frontend in self._frontends)
            world.run(world.monotonic() + (6.0 if has_dead else 1.0), lambda: False)
        self._check()
        for place in self._places:
            place.close()
        migrations = sum(sum(each.failover.stats.migrations.values()) for each in self._frontends)
        return Outcome(
            self._problems,
            dict(world.reached),
            dict(world.killed),
            self.num_faults,
            migrations,
            len(self.clients),
            took_s,
        )

    def _new_frontend(self, number: int, life: int) -> FrontendLife:
        return FrontendLife(
            self.world,
            number,
            life,
            self._places,
            max_migrations=self._max_migrations,
            wait_s=self._wait_s,
            repeat_probability=self._repeat_probability,
        )

    def _plan_clients(self) -> list[Client]:
        rng = self._rng
        clients = []
        for number in range(16 if self._point else rng.choice([1, 4, 8, 16])):
            is_poison = self._has_poison and number == 0
            client = make_client(rng, number, is_poison=is_poison, may_time_out=rng.random() < 0.5)
            clients.append(client)
            self.world.after(rng.uniform(0.3, FAULTS_S * 0.8), partial(self._send, client))
        return clients

    def _send(self, client: Client) -> None:
        frontend = self._rng.choice(self._frontends)
        if frontend.is_alive and not frontend.is_stopped:
            frontend.call(lambda: frontend.serve(client))
        else:
            self.world.after(0.1, lambda: self._send(client))

    # --- what goes wrong ---

    def _plan_faults(self) -> None:
        rng = self._rng
        faults: list[Callable[[], None]] = [
            self._kill_engine,
            self._kill_engine,
            self._kill_engine_at_a_point,
            self._kill_engine_at_a_point,
            self._stop_engine,
            self._lose_worker,
            self._hand_over,
            self._drain,
            self._cut,
            self._cut,
            self._partition,
            self._stop_frontend,
            self._kill_frontend_at_a_point,
        ]
        # Few kinds at a time reach further than all of them in each run.
        faults = rng.sample(faults, rng.randint(1, len(faults)))
        for _ in range(rng.choice([1, 2, 4, 10])):
            self.world.after(rng.uniform(0.0, FAULTS_S), lambda: self._strike(rng.choice(faults)))

    def _aim(self) -> None:
        """Let whoever may reach the point die there, and do what leads to it."""
        for time_s in (1.0, 2.0, 3.0):
            self.world.after(time_s, self._arm)
            for lead in (self._lose_worker, self._kill_engine, self._hand_over):
                self.world.after(time_s + self._rng.random(), lead)

    def _arm(self) -> None:
        self._num_breaks += 1
        for place in self._places:
            place.life.dies_at = place.next_dies_at = self._point if self._point in ENGINE_POINTS else ""
        for number, frontend in enumerate(self._frontends):
            frontend.dies_at = self._point if self._point in FRONTEND_POINTS else ""
            self.world.after(1.0, partial(self._replace, number))

    def _strike(self, fault: Callable[[], None]) -> None:
        self.num_faults += 1
        fault()

    def _engine(self) -> EnginePlace:
        place = self._rng.choice(self._places)
        place.restart_s = self._rng.choice([(0.05, 0.5), (0.05, 0.5), (2.0, 6.0)])
        return place

    def _kill_engine(self) -> None:
        self._num_breaks += 1
        self._engine().life.kill()

    def _kill_engine_at_a_point(self) -> None:
        self._engine().life.dies_at = self._rng.choice(ENGINE_POINTS)

    def _stop_engine(self) -> None:
        """A supervisor kills it in the end, or somebody continues it."""
        self._num_breaks += 1
        self._num_stalls += 1
        life = self._engine().life
        life.stop()
        action = self._rng.choice([life.kill, life.resume])
        self.world.after(
            self._rng.choice([0.3, 1.9, 2.5, 8.0]), lambda: action() if life.is_stopped else None
        )

    def _lose_worker(self) -> None:
        life = self._engine().life
        life.call(life.lose_worker)

    def _hand_over(self) -> None:
        life = self._engine().life
        life.call(life.hand_over)

    def _drain(self) -> None:
        life = self._engine().life
        life.call(lambda: life.drain(self._rng.choice([0.0, 0.2, 5.0])))

    def _link(self) -> tuple[FrontendLife, int]:
        frontend = self._rng.choice(self._frontends)
        return frontend, self._rng.randrange(len(self._places))

    def _cut(self) -> None:
        self._num_breaks += 1
        frontend, number = self._link()
        frontend.replicas[number].link.cut()

    def _partition(self) -> None:
        self._num_breaks += 1
        self._num_stalls += 1
        frontend, number = self._link()
        link = frontend.replicas[number].link
        link.partition()
        self.world.after(self._rng.choice([0.5, 1.9, 3.0, 7.0]), link.heal)

    def _stop_frontend(self) -> None:
        self._num_breaks += 1
        self._num_stalls += 1
        frontend = self._rng.choice(self._frontends)
        frontend.stop()
        self.world.after(self._rng.choice([0.4, 1.5, 3.0, 6.0]), frontend.resume)

    def _kill_frontend_at_a_point(self) -> None:
        number = self._rng.randrange(len(self._frontends))
        self._frontends[number].dies_at = self._rng.choice(FRONTEND_POINTS)
        self.world.after(1.0, lambda: self._replace(number))

    def _replace(self, number: int) -> None:
        old = self._frontends[number]
        if not old.is_alive:
            self._frontends[number] = self._new_frontend(number, old.life + 1)

    def _heal(self) -> None:
        """From now on all goes well."""
        for place in self._places:
            place.life.dies_at = place.next_dies_at = ""
            place.life.resume()
            place.restart_s = (0.05, 0.5)
            place.is_fragile = False
        for number, frontend in enumerate(self._frontends):
            frontend.dies_at = ""
            frontend.resume()
            for replica in frontend.replicas:
                replica.link.heal()
            self._replace(number)

    # --- what must hold ---

    def _is_over(self) -> bool:
        after_faults = self.world.monotonic() > self._begin_s + FAULTS_S + 1.0
        is_up = all(place.life.is_alive and place.life.engine is not None for place in self._places)
        return after_faults and is_up and all(client.is_over for client in self.clients)

    def _check(self) -> None:
        self._problems += self.world.problems
        for client in self.clients:
            if not client.is_over:
                self._problems.append(f"client {client.number} waits for ever")
                continue
            found = [*client.differences(), *self._unpermitted(client)]
            self._problems += [f"client {client.number}: {each}" for each in found]
        for frontend in self._frontends:
            self._problems += [f"frontend {frontend.number}: {each}" for each in _left_open(frontend)]
        num_poisoned = sum(place.num_poisoned for place in self._places)
        # Among more requests than are tried one at a time, only the number of migrations ends it.
        has_crowd = len(self.clients) > MAX_SUSPECTS
        if num_poisoned > max(MAX_POISONED, self._max_migrations + 1 if has_crowd else 0):
            self._problems.append(f"the poisoned request brought {num_poisoned} engines or workers down")
        for number, place in enumerate(self._places):
            self._problems += [f"engine {number}: {each}" for each in _leaks(place)]

    def _unpermitted(self, client: Client) -> Iterator[str]:
        """Errors that the client had no reason to get."""
        error = client.error
        waited_s = client.ended_s - client.begun_s
        timeout_s = client.request.timeout_s
        open_s = client.ended_s - client.opened_s
        if timeout_s and open_s > timeout_s + 1.0 and not self._num_stalls and client.generation:
            yield f"its timeout of {timeout_s:.2f} s ended it after {open_s:.2f} s"
        if client.is_poison and not (error or client.has_left or client.is_cut):
            yield "it was served, and ought to bring everything down"
        if error is None:
            return
        has_output = bool(client.history.times_s)
        match error.code:
            case "timeout":
                is_permitted = 0 < timeout_s <= waited_s + 0.01
            case "overloaded":
                is_permitted = not has_output or waited_s >= self._wait_s
            case "request_unsafe":
                is_permitted = client.is_poison or self._num_losses() >= 2
            case "engine_unavailable":
                is_permitted = self._num_losses() > self._max_migrations or waited_s >= self._wait_s
            case _:
                is_permitted = False
        if not is_permitted:
            yield f"error {error.code} after {waited_s:.2f} s: {error}"

    def _num_losses(self) -> int:
        """How often requests may have been lost with an engine or a worker: no more than this."""
        num_lives = sum(place.num_deaths + place.num_worker_losses for place in self._places)
        return self._num_breaks + num_lives


def _left_open(frontend: FrontendLife) -> Iterator[str]:
    if not frontend.is_alive:
        return
    if frontend.failover.num_displaced:
        yield f"{frontend.failover.num_displaced} sequences are displaced"
    for replica in frontend.replicas:
        if len(replica.session.sequences):
            yield f"{len(replica.session.sequences)} sequences are open on {replica.session.address}"


def _leaks(place: EnginePlace) -> Iterator[str]:
    engine = place.life.engine
    if not place.life.is_alive or engine is None:
        yield "is not ready in the end"
        return
    engine.check_integrity()
    stats = engine.stats()
    if (stats.num_running, stats.num_waiting) != (0, 0):
        yield f"{stats.num_running} requests run and {stats.num_waiting} wait"
    if stats.num_free_blocks != stats.num_blocks:
        yield f"{stats.num_blocks - stats.num_free_blocks} blocks are in use"


@contextmanager
def _kill_points(reach: Callable[[str], None]) -> Iterator[None]:
    """Let the kill points of all processes call `reach`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kill_points, "_setting", "simulated")
        patch.setattr(kill_points, "_reach", reach)
        yield
