"""In which order do engines take their turns? Scenario by scenario, round by round, first each in turn."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from benchmarks.compare import limits
from benchmarks.compare.engines import ENGINES
from benchmarks.compare.engines.base import Engine
from benchmarks.compare.held import why_not_held
from benchmarks.compare.offline import OfflineEngine
from benchmarks.compare.processes import EngineError, EngineProcess, cpu_s, machine_cpu_s
from benchmarks.compare.prompts import PromptSource
from benchmarks.compare.results import LIMIT, Results, Turn
from benchmarks.compare.scenarios import OFFLINE, ONLINE, Offline
from benchmarks.compare.server import Server
from benchmarks.compare.shapes import SHAPES
from benchmarks.compare.stream_client import StreamError
from benchmarks.compare.tensors import num_weight_bytes

# A scenario of milliseconds is repeated until it has had this long, so that its median means something.
MIN_TURN_S, MAX_REPEATS = 1.0, 20

Figures = tuple[float, dict[str, float]]


class Plan(NamedTuple):
    """What to run.

    Attributes:
        root: folder of models, virtual environments and logs.
        output: JSON file, written after every turn.
        isa: what all engines are held to, "" for nothing.
    """

    root: Path
    models: list[str]
    scenarios: list[str]
    engines: list[str]
    rounds: int
    output: Path
    isa: str = ""


class HasProcess(Protocol):
    """What an engine's process belongs to."""

    process: EngineProcess


Running = TypeVar("Running", bound=HasProcess)
# Scenario, engine, and whether it is only to warm up.
Measure = Callable[[str, Running, bool], Figures]


class Run:
    """Measures everything in a plan; `results` grows from turn to turn."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self._plan = plan
        self._seed = seed
        self.results = Results()
        self._logs = plan.root / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)

    def model(self, name: str) -> None:
        """Measure one model: offline with all engines loaded, then online with all of them served."""
        folder = self._plan.root / "models" / name
        prompts = PromptSource(folder, self._seed)
        engines = list(self._present(folder))
        offline = [scenario for scenario in self._plan.scenarios if scenario in OFFLINE]
        online = [scenario for scenario in self._plan.scenarios if scenario in ONLINE]

        def generate(scenario: str, engine: OfflineEngine, warm_up: bool) -> Figures:
            return offline_turn(engine, OFFLINE[scenario], prompts, 0.0 if warm_up else MIN_TURN_S)

        def serve(scenario: str, server: Server, warm_up: bool) -> Figures:
            load = ONLINE[scenario]
            load = load.warm_up() if warm_up else load
            return server.run(load, prompts.texts(load.num_requests, load.prompt_tokens))

        if offline:
            with self._started(engines, folder, OfflineEngine) as running:
                self._take_turns(name, offline, running, generate)
        if online:
            with self._started([one for one in engines if one.has_server], folder, Server) as servers:
                self._take_turns(name, online, servers, serve)

    def _present(self, folder: Path) -> Iterator[Engine]:
        for name in self._plan.engines:
            engine, root = ENGINES[name], self._plan.root
            reason = engine.missing(root, folder) or why_not_held(engine, root, self._plan.isa)
            if reason:
                self._leave_out(name, reason)
            else:
                yield engine

    @contextmanager
    def _started(
        self,
        engines: Sequence[Engine],
        folder: Path,
        make: Callable[[Engine, Path, Path, Path, str], Running],
    ) -> Iterator[dict[str, Running]]:
        """Start the engines one after the other, and pause each; yield those that are up."""
        running: dict[str, Running] = {}
        try:
            for engine in engines:
                print(f"{folder.name}: starting {engine.name}", flush=True)
                log = self._logs / f"{make.__name__}-{folder.name}-{engine.name}.log"
                try:
                    one = make(engine, self._plan.root, folder, log, self._plan.isa)
                except EngineError as error:
                    self._leave_out(engine.name, f"{folder.name}: {error}")
                    continue
                running[engine.name] = one
                if isinstance(one, Server):
                    self.results.starts.append(one.describe_start())
                if isinstance(one, OfflineEngine) and self._plan.isa:
                    self.results.instructions[engine.name] = one.instructions
                one.process.pause()
            yield running
        finally:
            for one in running.values():
                one.process.close()

    def _take_turns(
        self, model: str, scenarios: Sequence[str], running: dict[str, Running], measure: Measure[Running]
    ) -> None:
        for scenario in scenarios:
            for number in range(-1, self._plan.rounds):
                # Round -1 warms up. The order turns, so that nobody always follows the same neighbour.
                names = list(running)
                shift = number % max(1, len(names))
                if number >= 0:
                    self._measure_limit(model, scenario, number)
                for name in names[shift:] + names[:shift]:
                    turn = self._turn((name, model, scenario, number), running, measure)
                    if turn is not None and number >= 0:
                        self._keep(turn)

    def _turn(
        self, key: tuple[str, str, str, int], running: dict[str, Running], measure: Measure[Running]
    ) -> Turn | None:
        """Give an engine its turn; one that fails has no further turns with this model."""
        process = running[key[0]].process
        load_average, start = os.getloadavg()[0], time.perf_counter()
        process.resume()
        known_s, machine_s = cpu_s(process.pid) + time.process_time(), machine_cpu_s()
        try:
            rate, details = measure(key[2], running[key[0]], key[3] < 0)
        except (EngineError, StreamError, TimeoutError, OSError) as error:
            self._leave_out(key[0], f"{key[1]}, {key[2]}: {error}")
            running.pop(key[0]).process.close()
            return None
        known_s = cpu_s(process.pid) + time.process_time() - known_s
        others = (machine_cpu_s() - machine_s - known_s) / (time.perf_counter() - start)
        process.pause()
        return Turn(*key, rate, load_average, max(0.0, others), details)

    def _measure_limit(self, model: str, scenario: str, number: int) -> None:
        """Measure the machine in the round it is compared with."""
        load_average = os.getloadavg()[0]
        shape = SHAPES[model]
        weight_bytes = num_weight_bytes(self._plan.root / "models" / model)
        weight_bytes = weight_bytes * shape.num_active_parameters // shape.num_parameters
        if scenario == "single" and weight_bytes > limits.MIN_FLOOR_BYTES:
            rate = limits.read_gb_per_s(self._plan.root)
            floor, details = limits.decode_floor_tok_s(rate, weight_bytes), {"gb_per_s": rate}
        # Nothing holds the process that measures it to an instruction set.
        elif scenario == "prefill" and not self._plan.isa:
            rate = limits.matmul_gflop_per_s()
            floor, details = limits.prefill_ceiling_tok_s(rate, shape), {"gflop_per_s": rate}
        else:
            return
        self._keep(Turn(LIMIT, model, scenario, number, floor, load_average, details=details))

    def _keep(self, turn: Turn) -> None:
        print(
            f"{turn.model} {turn.scenario} round {turn.round}: {turn.engine} {turn.tok_s:,.1f} tok/s, "
            f"load {turn.load_average:.1f}, others {turn.other_cores:.2f} cores",
            flush=True,
        )
        self.results.turns.append(turn)
        self.results.save(self._plan.output)

    def _leave_out(self, engine: str, reason: str) -> None:
        print(f"{engine} left out: {reason}", flush=True)
        self.results.absent[engine] = reason


def offline_turn(engine: OfflineEngine, scenario: Offline, prompts: PromptSource, seconds: float) -> Figures:
    """Repeat a scenario for so long with new prompts each time, once at least; return its median rate."""
    rates: list[float] = []
    start = time.perf_counter()
    while not rates or (time.perf_counter() - start < seconds and len(rates) < MAX_REPEATS):
        first_s = 0.0
        if scenario.first_token_apart:
            first_s = engine.generate(prompts.token_ids(scenario.num_prompts, scenario.prompt_tokens), 1)
        batch = prompts.token_ids(scenario.num_prompts, scenario.prompt_tokens)
        rates.append(scenario.rate(engine.generate(batch, scenario.num_new), first_s))
    return statistics.median(rates), {"repeats": float(len(rates))}
