"""Do streams survive faults? python -m benchmarks.failover [SCENARIO ...] [--runs N] [--streams N] [FLAG ...]

Each scenario starts a server, opens mixed requests (greedy, sampled, several choices, logprobs, stop strings,
penalties, beams, whole answers, ...) without a fault, then again for each run with the fault, and compares
every answer with the undisturbed one. "restart" measures how long an engine-core takes until it is ready
again, without load; "kill-points" kills a process at each named place of its life. Further flags go to the
server.

Columns: streams asked, and open at the fault; "whole" came to their ends without an error, "same" do not
differ by a byte; the gap is the longest pause of an open stream less its usual time between events, in
seconds; then medians, from the fault: /ready told of the fault, the server was ready again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import psutil

from benchmarks.failover.outcome import HEAD, Outcome, judge, judge_times, line
from benchmarks.failover.scenarios import NUM_TOKENS, SCENARIOS, Flags, Scenario, serve
from benchmarks.failover.watch import Watch, pss_kb
from tests.history import differences
from tests.system.nemesis.asks import mixed_asks
from tests.system.nemesis.kill_ways import AT_FRONTENDS, WAYS, visit
from tests.system.nemesis.play import Run, play
from tests.system.nemesis.stage import Stage, wait_for

RESTART, KILL_POINTS = "restart", "kill-points"
# A process that is killed six times within a minute is not started again.
NUM_SERVERS = 6
# `splitserve serve` gives up a process that ends more than five times within a minute.
RUNS_PER_SERVER = 4
MAX_RUN_S = 600.0
# A spare engine-core has used some processor time and no more in the time between two looks: it is prepared.
MIN_PREPARE_S = 0.2
PREPARE_LOOK_S = 0.5
MAX_RESTART_S = 300.0
COUNTERS = ("prefix_cache_queries_total", "prefix_cache_hits_total")


def run_scenario(scenario: Scenario, num_runs: int, num_streams: int, more: Flags) -> list[Outcome]:
    """Disturb servers so many times; none so often that it would give up."""
    outcomes: list[Outcome] = []
    while left := num_runs - len(outcomes):
        outcomes += run_server(scenario, min(left, RUNS_PER_SERVER), num_streams, more)
    return outcomes


def run_server(scenario: Scenario, num_runs: int, num_streams: int, more: Flags) -> list[Outcome]:
    """Start a server, learn the undisturbed answers, and disturb it so many times."""
    asks = scenario.asks(num_streams)
    with scenario.start(more) as stage:
        play(stage, asks[:num_streams])
        begun_s = time.monotonic()
        reference = play(stage, asks, timeout_s=MAX_RUN_S)
        undisturbed_s = time.monotonic() - begun_s
        num_events = sum(len(history.times_s) for history in reference.histories)
        outcomes = []
        for turn in range(num_runs):
            outcome = disturb(stage, scenario, turn, reference, int(num_events * scenario.after))
            outcome.figures["undisturbed_s"] = undisturbed_s
            outcomes.append(outcome)
        return outcomes


def disturb(stage: Stage, scenario: Scenario, turn: int, reference: Run, after: int) -> Outcome:
    """Run once with the fault; the server is whole again afterwards."""
    stage.wait_ready()
    wait_for_spare(stage)
    before = counters(stage)
    fault = scenario.fault(stage, turn)
    memory = {}

    async def measured_fault() -> None:
        memory["pss_mib_at_fault"] = pss_kb(stage.all_pids()) / 1024
        await fault()

    with Watch(stage.url) as watch:
        begun_s = time.monotonic()
        run = play(stage, reference.asks, measured_fault, after, MAX_RUN_S)
        took_s = time.monotonic() - begun_s
        scenario.repair(stage, turn)
        stage.wait_ready()
        if watch.told_s(run.fault_s) is not None:
            wait_for(lambda: watch.ready_s(run.fault_s), "the server is ready")
    if scenario.cuts_connections:
        run, reference = without_cut_off(run, reference)
    outcome = judge(run, reference, watch)
    if not outcome.num_open:
        outcome.faults.append("nothing was open when the fault came")
    outcome.figures = {"took_s": took_s, **memory, "pss_mib_after": pss_kb(stage.all_pids()) / 1024}
    outcome.figures |= recomputed(before, counters(stage), outcome.num_open)
    return outcome


def without_cut_off(run: Run, reference: Run) -> tuple[Run, Run]:
    """Return a run and the undisturbed one without the requests whose connections broke."""
    kept = [number for number, seen in enumerate(run.histories) if not seen.was_cut_off]
    seen, expected = (
        dataclasses.replace(
            each, asks=[each.asks[n] for n in kept], histories=[each.histories[n] for n in kept]
        )
        for each in (run, reference)
    )
    return seen, expected


def wait_for_spare(stage: Stage) -> None:
    """Wait until `splitserve serve` has a spare engine-core again, as it has most of the time."""
    if stage.pids("serve"):
        wait_for(lambda: is_prepared(stage), "a spare engine-core is prepared")


def is_prepared(stage: Stage) -> bool:
    """Whether there is a spare that has used some processor time and then none for a while."""
    used_s = []
    for _ in range(2):
        time.sleep(PREPARE_LOOK_S)
        pids = stage.pids("engine-core")
        if len(pids) != 2:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            used_s.append((pids[1], sum(psutil.Process(pids[1]).cpu_times()[:2])))
    return len(used_s) == 2 and used_s[0] == used_s[1] and used_s[0][1] > MIN_PREPARE_S


def counters(stage: Stage) -> list[float]:
    """Return what the engines say of looked up and cached prompt tokens."""
    lines = httpx.get(f"{stage.url}/metrics", timeout=30).text.splitlines()
    return [
        sum(float(each.rsplit(" ", 1)[1]) for each in lines if each.startswith(f"splitserve:{name}"))
        for name in COUNTERS
    ]


def recomputed(before: list[float], after: list[float], num_open: int) -> dict[str, float]:
    """Return how many tokens of an open stream the new engine had to compute again.

    A new engine counts from zero, and what it counts are streams that were open and those asked since.
    """
    begin = before if after[0] >= before[0] else [0.0, 0.0]
    asked, hit = (later - earlier for earlier, later in zip(begin, after, strict=True))
    return {"recomputed_per_stream": (asked - hit) / num_open} if num_open else {}


def run_restart(num_runs: int, more: Flags) -> list[Outcome]:
    """Kill engine-core without load; how long until a server that runs is ready again?"""
    outcomes = []
    for first in range(0, num_runs, RUNS_PER_SERVER):
        with serve()(more) as stage:
            for _ in range(first, min(num_runs, first + RUNS_PER_SERVER)):
                stage.wait_ready()
                wait_for_spare(stage)
                outcomes.append(one_restart(stage))
    return outcomes


def one_restart(stage: Stage) -> Outcome:
    """Kill engine-core and wait until the server is ready."""
    victim, outcome = stage.pids("engine-core")[0], Outcome()
    with Watch(stage.url) as watch:
        fault_s = time.monotonic()
        os.kill(victim, 9)
        wait_for(lambda: watch.ready_s(fault_s), "the server is ready", MAX_RESTART_S)
    judge_times(outcome, watch, fault_s)
    return outcome


def run_kill_points(num_streams: int, more: Flags) -> list[Outcome]:
    """Strike at every kill point; streams of a frontend that was struck do not count. One outcome each."""
    asks, outcomes = mixed_asks(num_streams, NUM_TOKENS), []
    for number in range(NUM_SERVERS):
        with serve(num_frontends=2)(more) as stage:
            reference = play(stage, asks)
            for kill_point in sorted(WAYS)[number::NUM_SERVERS]:
                run = visit(stage, kill_point, asks, num_streams * 5)
                pairs = zip(run.histories, reference.histories, strict=True)
                counted = [pair for pair in pairs if not (kill_point in AT_FRONTENDS and pair[0].was_cut_off)]
                found = [differences(*pair) for pair in counted]
                outcome = Outcome(len(counted), run.num_open_at_fault())
                outcome.num_whole = sum(seen.is_whole for seen, _ in counted)
                outcome.num_identical = sum(not each for each in found)
                outcome.faults = [f"{kill_point}: {text[:300]}" for each in found for text in each][:2]
                outcomes.append(outcome)
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 1 if any answer differs."""
    parser = argparse.ArgumentParser(
        prog="failover",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog="scenarios: " + ", ".join([*SCENARIOS, RESTART, KILL_POINTS]),
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--model", default="", help="directory (default: the demo model)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options, rest = parser.parse_known_args(arguments)
    names = [word for word in rest if word in (*SCENARIOS, RESTART, KILL_POINTS)]
    asked = itertools.takewhile(lambda word: not word.startswith("-"), rest)
    if unknown := [word for word in asked if word not in names]:
        parser.error(
            f"there is no scenario {unknown[0]}; there are {', '.join(SCENARIOS)}, {RESTART}, {KILL_POINTS}"
        )
    start = Flags(options.model, [word for word in rest if word not in names])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(HEAD, flush=True)
    found: dict[str, list[Outcome]] = {}
    for name in names or [*SCENARIOS, RESTART, KILL_POINTS]:
        if name == KILL_POINTS:
            found[name] = run_kill_points(options.streams, start)
        elif name == RESTART:
            found[name] = run_restart(options.runs, start)
        else:
            found[name] = run_scenario(SCENARIOS[name], options.runs, options.streams, start)
        print(line(name, found[name]), flush=True)
        report_faults(found[name])
        if options.json:
            rows = {name: [dataclasses.asdict(outcome) for outcome in each] for name, each in found.items()}
            options.json.write_text(json.dumps({"load": os.getloadavg(), "scenarios": rows}, indent=1))
    return int(any(o.faults or o.num_identical < o.num_streams for each in found.values() for o in each))


def report_faults(outcomes: Sequence[Outcome]) -> None:
    """Print what differed, and what the scenario measured besides, of the first runs."""
    for number, outcome in enumerate(outcomes):
        if number == 0 and outcome.figures:
            print("   " + ", ".join(f"{key} {value:.1f}" for key, value in outcome.figures.items()))
        for fault in outcome.faults[:2]:
            print(f"   run {number}: {fault}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
