"""Who takes a turn when, what happens to an engine that fails, and one whole run with our own engine."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.compare import limits, run
from benchmarks.compare.engines import ENGINES
from benchmarks.compare.offline import OfflineEngine
from benchmarks.compare.processes import EngineError, EngineProcess
from benchmarks.compare.prompts import PromptSource
from benchmarks.compare.results import LIMIT, load
from benchmarks.compare.run import Plan, Run, offline_turn
from benchmarks.compare.scenarios import Offline
from benchmarks.compare.shapes import SHAPES
from tests.benchmarks.compare.conftest import SMALL


class FakeProcess(EngineProcess):
    """A process that only notes what is done to it."""

    def __init__(self, events: list[str], name: str) -> None:
        self.pid = 0
        self._events, self._name = events, name

    def pause(self) -> None:
        self._events.append(f"pause {self._name}")

    def resume(self) -> None:
        self._events.append(f"resume {self._name}")

    def close(self) -> None:
        self._events.append(f"close {self._name}")


class FakeEngine:
    """What a turn is given instead of a running engine."""

    def __init__(self, events: list[str], name: str) -> None:
        self.name = name
        self.process: EngineProcess = FakeProcess(events, name)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the machine's limits by fixed ones."""
    monkeypatch.setattr(limits, "read_gb_per_s", lambda root: 10.0)
    monkeypatch.setattr(limits, "matmul_gflop_per_s", lambda: 100.0)
    return []


def make_run(root: Path, rounds: int) -> Run:
    return Run(Plan(root, ["tiny"], ["throughput"], [], rounds, root / "results.json"), seed=1)


def take_turns(measurement: Run, events: list[str], measure: Callable[[str, FakeEngine], float]) -> None:
    running = {name: FakeEngine(events, name) for name in ("a", "b", "c")}
    measurement._take_turns("tiny", ["throughput"], running, lambda s, e, _: (measure(s, e), {}))


def test_everyone_is_first_in_turn_and_the_warm_up_does_not_count(tmp_path: Path, events: list[str]) -> None:
    order: list[str] = []

    def measure(scenario: str, engine: FakeEngine) -> float:
        order.append(engine.name)
        return 1.0

    measurement = make_run(tmp_path, rounds=3)
    take_turns(measurement, events, measure)
    rounds = ["".join(order[i : i + 3]) for i in range(0, 12, 3)]
    assert rounds[1:] == ["abc", "bca", "cab"]
    assert [(turn.engine, turn.round) for turn in measurement.results.turns] == [
        *(("a", 0), ("b", 0), ("c", 0)),
        *(("b", 1), ("c", 1), ("a", 1)),
        *(("c", 2), ("a", 2), ("b", 2)),
    ]


def test_only_the_engine_whose_turn_it_is_runs(tmp_path: Path, events: list[str]) -> None:
    def measure(scenario: str, engine: FakeEngine) -> float:
        events.append(f"turn {engine.name}")
        return 1.0

    take_turns(make_run(tmp_path, rounds=2), events, measure)
    for i in range(0, len(events), 3):
        name = events[i].split()[1]
        assert events[i : i + 3] == [f"resume {name}", f"turn {name}", f"pause {name}"]


def test_an_engine_that_fails_is_ended_and_the_others_go_on(tmp_path: Path, events: list[str]) -> None:
    calls = {"a": 0, "b": 0, "c": 0}

    def measure(scenario: str, engine: FakeEngine) -> float:
        calls[engine.name] += 1
        if engine.name == "b" and calls["b"] == 2:
            raise EngineError("out of memory")
        return 1.0

    measurement = make_run(tmp_path, rounds=3)
    take_turns(measurement, events, measure)
    assert calls == {"a": 4, "b": 2, "c": 4}
    assert events.count("close b") == 1
    assert measurement.results.absent == {"b": "tiny, throughput: out of memory"}
    assert {turn.engine for turn in measurement.results.turns} == {"a", "c"}


def test_a_mistake_of_ours_is_not_taken_for_a_failing_engine(tmp_path: Path, events: list[str]) -> None:
    def measure(scenario: str, engine: FakeEngine) -> float:
        raise TypeError("ours")

    with pytest.raises(TypeError, match="ours"):
        take_turns(make_run(tmp_path, rounds=1), events, measure)


class FakeOffline:
    """Takes a second per new token by a clock of its own, and keeps the prompts."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.prompts: list[list[int]] = []

    def generate(self, prompts: list[list[int]], num_new: int) -> float:
        self.prompts += prompts
        seconds = 0.1 * num_new
        self.now_s += seconds
        return seconds


def test_short_scenarios_are_repeated_with_new_prompts(
    small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeOffline()
    monkeypatch.setattr(run.time, "perf_counter", lambda: engine.now_s)
    rate, details = offline_turn(engine, Offline(2, 16, 3), PromptSource(small_model, 1), 1.0)  # type: ignore[arg-type]
    assert details["repeats"] == 4
    assert rate == pytest.approx(2 * 3 / 0.3)
    assert len({tuple(prompt) for prompt in engine.prompts}) == 8


def test_decoding_counts_without_the_first_token(small_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeOffline()
    monkeypatch.setattr(run.time, "perf_counter", lambda: engine.now_s)
    scenario = Offline(1, 16, 64, first_token_apart=True)
    rate, details = offline_turn(engine, scenario, PromptSource(small_model, 1), 1.0)  # type: ignore[arg-type]
    assert (rate, details["repeats"]) == (pytest.approx(63 / (6.4 - 0.1)), 1)


def test_the_limit_of_a_round_stands_beside_its_turns(
    small_model: Path, tmp_path: Path, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MIN_FLOOR_BYTES", 0)
    shutil.copytree(small_model, tmp_path / "models" / "tiny")
    measurement = make_run(tmp_path, rounds=2)
    running = {"a": FakeEngine(events, "a")}
    measurement._take_turns("tiny", ["single", "prefill", "c1"], running, lambda s, e, _: (1.0, {}))
    found = [(t.scenario, t.round, t.details) for t in measurement.results.turns if t.engine == LIMIT]
    assert found == [
        *(("single", number, {"gb_per_s": 10.0}) for number in (0, 1)),
        *(("prefill", number, {"gflop_per_s": 100.0}) for number in (0, 1)),
    ]


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(400)
def test_our_engine_is_measured_offline_and_over_http(
    small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHAPES, "mini", SMALL)
    monkeypatch.setattr(run, "MIN_TURN_S", 0.0)
    shutil.copytree(small_model, tmp_path / "models" / "mini")
    engines, isa = ["splitserve", "vllm"], "avx2" if platform.machine() == "x86_64" else ""
    plan = Plan(tmp_path, ["mini"], ["throughput", "c1"], engines, 1, tmp_path / "out.json", isa)
    Run(plan, seed=1).model("mini")
    results = load(tmp_path / "out.json")
    assert not isa or " cpu-avx2 " in results.instructions["splitserve"]
    offline, online = results.turns
    assert (offline.engine, offline.scenario, online.scenario) == ("splitserve", "throughput", "c1")
    assert offline.tok_s > 0
    assert online.tok_s > 0
    assert online.details["tokens_per_request"] == 64
    assert online.details["prompt_tokens_per_request"] == 64
    assert 0 < online.details["client_cores"] < 1
    [start] = results.starts
    assert 0 < start.ready_s < 100
    assert start.pss_bytes > start.extra_bytes > 50e6
    assert results.absent == {
        "vllm": f"not installed: python -m benchmarks.compare setup {tmp_path} --peers vllm"
    }


@pytest.mark.system
def test_an_engine_that_cannot_load_names_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(EngineError, match=str(log)):
        OfflineEngine(ENGINES["splitserve"], tmp_path, tmp_path / "nothing", log)
    assert "nothing" in log.read_text()
