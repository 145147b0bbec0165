"""Failover under random faults: python -m tests.simulation [--seeds N | --seconds S] [--seed FIRST]

Each seed is a run of its own: some frontends, engines and clients in one thread, on simulated time and a
simulated network, with the real sessions, owner of open requests, engine and recovery, and a simulated worker
whose tokens are known beforehand. Engines, workers and frontends are killed, also at named points, stopped,
drained and replaced; connections break and stand still. In the end every client has seen what it would have
seen without all that, or an error for which there was a reason, and nobody holds anything any more. What
fails is printed with its seed, which replays it exactly.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import secrets
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, islice

from tests.simulation.run import POINTS, Outcome, Run

REPORT_S = 10.0
SEEDS_AT_ONCE = 8
MAX_SHOWN = 5


def play(seed: int) -> tuple[int, Outcome]:
    """Play one seed; an exception is a problem like any other."""
    try:
        return seed, Run(seed).run()
    except Exception:
        return seed, Outcome([traceback.format_exc()], {}, {}, 0, 0, 0, 0.0)


class Tally:
    """What all runs came to so far."""

    def __init__(self) -> None:
        self._begin_s = time.monotonic()
        self._num_runs = self._num_clients = self._num_faults = self._num_migrations = 0
        self._simulated_s = 0.0
        self._killed: Counter[str] = Counter()
        self.failed: list[int] = []

    def add(self, seed: int, outcome: Outcome) -> None:
        self._num_runs += 1
        self._num_clients += outcome.num_clients
        self._num_faults += outcome.num_faults
        self._num_migrations += outcome.num_migrations
        self._simulated_s += outcome.simulated_s
        self._killed.update(outcome.killed)
        if outcome.problems:
            self.failed.append(seed)
            print(f"seed {seed} FAILED: python -m tests.simulation --seed {seed} --seeds 1", flush=True)
            for problem in outcome.problems[:MAX_SHOWN]:
                print(f"    {problem}", flush=True)

    def __str__(self) -> str:
        took_s = time.monotonic() - self._begin_s
        kills = " ".join(f"{point}={self._killed[point]}" for point in POINTS)
        return (
            f"{took_s:.0f} s: {self._num_runs} seeds ({self._num_runs / max(took_s, 1e-9):.1f}/s), "
            f"{self._simulated_s / 3600:.2f} simulated hours, {self._num_clients} requests, "
            f"{self._num_faults} faults, {self._num_migrations} migrations, {len(self.failed)} failed; "
            f"killed at {kills}"
        )


def play_all(seeds: Iterator[int], seconds: float, num_processes: int) -> Tally:
    """Play seeds until there are no more, or no time is left."""
    tally = Tally()
    end_s = time.monotonic() + seconds
    report_s = time.monotonic() + REPORT_S
    with multiprocessing.get_context("fork").Pool(num_processes) as pool:
        while batch := list(islice(seeds, SEEDS_AT_ONCE * num_processes)):
            for seed, outcome in pool.imap_unordered(play, batch):
                tally.add(seed, outcome)
            if time.monotonic() >= report_s:
                report_s = time.monotonic() + REPORT_S
                print(tally, flush=True)
            if time.monotonic() >= end_s:
                break
    return tally


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, help="how many runs; as many as there is time for if left out")
    parser.add_argument("--seconds", type=float, default=60.0, help="without --seeds")
    parser.add_argument("--seed", type=int, help="the first seed; a random one if left out")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    flags = parser.parse_args(arguments)
    # The faults would fill the log.
    logging.disable(logging.CRITICAL)
    first = secrets.randbits(32) if flags.seed is None else flags.seed
    seeds = count(first) if flags.seeds is None else iter(range(first, first + flags.seeds))
    seconds = flags.seconds if flags.seeds is None else float("inf")
    print(f"first seed {first}", flush=True)
    tally = play_all(seeds, seconds, flags.processes)
    print(tally)
    if tally.failed:
        print(f"failed: seeds {tally.failed[:100]}")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
