"""Random load on real processes: python -m tests.system.soak [--seconds S] [--seed N] [MODEL] [FLAG ...]

A model instead of the demo model and further flags go to the server.

Starts `splitserve serve` with two frontends, a pool too small for the load and CPU offload. Every request of
a catalogue is answered once alone, and once by a server that runs every step eagerly. Then clients ask them
in every way at once, with priorities, timeouts and closed connections, and compare. At the end nothing may
run or wait, all blocks must be free, and the memory of each process must be what it was after a third of the
time (runs shorter than a minute say nothing about memory).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.system.processes import Process, serve_command, wait_all_ready
from tests.system.soak.catalogue import ALONE, Ask, draw_delivery, make_catalogue
from tests.system.soak.client import Answer, End, ask_once
from tests.system.soak.watch import MIB, Figures, MemoryWatch, is_flat

REPORT_S = 10.0
LEAST_S_TO_JUDGE_MEMORY = 60.0
SETTLE_S = 60.0
MAX_SHOWN = 4000
# The engine compares its bookkeeping with itself a second after its last step, and ends if it does not hold.
INTEGRITY_S = 3.0
FLAGS = (
    *("--scheduling-policy", "priority", "--log-level", "warning"),
    *("--num-blocks", "64", "--max-num-seqs", "12", "--max-num-batched-tokens", "256"),
    *("--kv-offload-gb", "0.01", "--log-wait", "0"),
)


class Plan(NamedTuple):
    """How long and by how many clients; the seed decides the catalogue and what each client does."""

    seconds: float
    num_clients: int
    num_asks: int
    seed: int


class Load(NamedTuple):
    """What the clients share: requests with their answers alone, the end of the time, and the counts."""

    cases: list[tuple[Ask, Answer]]
    end_s: float
    ends: Counter[End]


async def answer_alone(url: str, asks: list[Ask]) -> list[Answer]:
    """Answer each request with nothing beside it."""
    async with httpx.AsyncClient(base_url=url, timeout=None) as http:
        answers = [await ask_once(http, ask, ALONE) for ask in asks]
    assert all(answer.end is End.WHOLE for answer in answers)
    return answers


async def client(url: str, load: Load, rng: random.Random) -> None:
    """Ask at random until the time is over; now and then over a new connection, so to any frontend."""
    while time.monotonic() < load.end_s:
        async with httpx.AsyncClient(base_url=url, timeout=None) as http:
            for _ in range(rng.randint(1, 20)):
                ask, alone = rng.choice(load.cases)
                delivery = draw_delivery(rng, ask)
                answer = await ask_once(http, ask, delivery)
                assert answer.agrees_with(alone), f"{ask}\n{delivery}\n{answer}\nalone: {alone}"
                load.ends[answer.end] += 1


async def sample_memory(watch: MemoryWatch, load: Load) -> None:
    """Look at the processes every second, and report now and then."""
    begin_s = reported_s = time.monotonic()
    while (now_s := time.monotonic()) < load.end_s:
        watch.sample()
        if now_s - reported_s > REPORT_S:
            reported_s = now_s
            print(f"{now_s - begin_s:.0f} s: {describe(load.ends)}", flush=True)
        await asyncio.sleep(min(1.0, max(0.0, load.end_s - now_s)))


async def apply_load(url: str, watch: MemoryWatch, plan: Plan, asks: list[Ask], eager: list[Answer]) -> Load:
    """Run clients for so long; the first failure ends all.

    Raises:
        ExceptionGroup: a client or the watch failed.
    """
    alone = await answer_alone(url, asks)
    for ask, answer, expected in zip(asks, alone, eager, strict=True):
        assert answer == expected, f"{ask}\n{answer}\neager: {expected}"
    load = Load(list(zip(asks, alone, strict=True)), time.monotonic() + plan.seconds, Counter())
    async with asyncio.TaskGroup() as group:
        group.create_task(sample_memory(watch, load))
        for number in range(plan.num_clients):
            group.create_task(client(url, load, random.Random(f"{plan.seed} {number}")))
    assert await answer_alone(url, asks) == alone
    return load


def wait_until_idle(url: str) -> Figures:
    """Wait until all blocks are free and the engine has checked itself; return its figures."""
    deadline = time.monotonic() + SETTLE_S
    while not (figures := Figures(url)).is_idle or figures["last_step_age_seconds"] < INTEGRITY_S:
        assert time.monotonic() < deadline, "something still runs or waits, or blocks are not free"
        time.sleep(0.2)
    return figures


def soak(server: Process, url: str, plan: Plan, asks: list[Ask], eager: list[Answer]) -> str:
    """Load a server that is ready; return what there is to tell.

    Raises:
        AssertionError, ExceptionGroup: something was not as promised.
    """
    watch = MemoryWatch(server)
    load = asyncio.run(apply_load(url, watch, plan, asks, eager))
    figures = wait_until_idle(url)
    watch.sample()
    assert "Traceback" not in (log := server.text()), log[log.index("Traceback") :][:MAX_SHOWN]
    growth = watch.growth()
    if plan.seconds >= LEAST_S_TO_JUDGE_MEMORY:
        leaking = {name: sizes for name, sizes in growth.items() if not is_flat(*sizes)}
        assert not leaking, f"{describe_growth(leaking)}; {describe(load.ends)}"
    return "; ".join((describe(load.ends), describe_figures(figures), describe_growth(growth)))


def describe(ends: Counter[End]) -> str:
    return f"{ends.total()} requests: " + ", ".join(f"{ends[end]} {end.name.lower()}" for end in End)


def describe_figures(figures: Figures) -> str:
    counts = {
        "preemptions": "num_preemptions_total",
        "blocks saved": "kv_blocks_saved_total",
        "loaded": "kv_blocks_loaded_total",
    }
    return ", ".join(f"{figures[name]:.0f} {what}" for what, name in counts.items())


def describe_growth(growth: dict[str, tuple[int, int]]) -> str:
    changes = (f"{name} {before / MIB:.1f} to {after / MIB:.1f}" for name, (before, after) in growth.items())
    return "MiB " + ", ".join(changes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--catalogue", type=int, default=60, help="different requests")
    parser.add_argument("--seed", type=int)
    flags, server_flags = parser.parse_known_args(arguments)
    seed = secrets.randbits(40) if flags.seed is None else flags.seed
    plan = Plan(flags.seconds, flags.clients, flags.catalogue, seed)
    print(plan, flush=True)
    asks = make_catalogue(random.Random(plan.seed), plan.num_asks)
    with serving(1, "--enforce-eager", "--log-level", "warning", *server_flags) as (_, url):
        eager = asyncio.run(answer_alone(url, asks))
    with serving(2, *FLAGS, *server_flags) as (server, url):
        told = soak(server, url, plan, asks, eager)
    print(f"passed: {plan.seconds:g} s, seed {plan.seed}; {told}")
    return 0


@contextlib.contextmanager
def serving(num_frontends: int, *flags: str) -> Iterator[tuple[Process, str]]:
    """A server of its own, ready; yields the process and its URL."""
    words = ("--api-server-count", str(num_frontends), *flags)
    with (
        tempfile.TemporaryDirectory(prefix="sst-") as folder,
        serve_command(Path(folder) / "serve.log", *words, runtime_dir=folder) as (url, server),
    ):
        wait_all_ready(url, num_frontends, server)
        yield server, url


if __name__ == "__main__":
    sys.exit(main())
