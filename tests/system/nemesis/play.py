"""Open streams on a server, disturb it when they have got somewhere, and compare with the undisturbed run."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tests.history import History, differences
from tests.system.nemesis.asks import Ask
from tests.system.nemesis.sse_client import Client, Progress, ask_all
from tests.system.nemesis.stage import POLL_S, Stage, say

# From the first request to the last answer.
RUN_S = 110.0
# How often to try a fault that came too late.
NUM_TRIES = 5

Fault = Callable[[], Awaitable[None]]


@dataclass
class Run:
    """What became of all requests.

    Attributes:
        fault_s: when the fault began (time.monotonic); infinity if it did not.
    """

    asks: Sequence[Ask]
    histories: list[History]
    fault_s: float = float("inf")

    def num_open_at_fault(self) -> int:
        """Return how many streams were between their first and their last event when the fault began."""
        return sum(history.was_open(self.fault_s) for history in self.histories)

    def gaps_s(self) -> list[float]:
        """Return the longest pause after the fault of each stream that was open then."""
        open_then = (history for history in self.histories if history.was_open(self.fault_s))
        return [history.longest_gap_s(self.fault_s) for history in open_then]


def play(
    stage: Stage,
    asks: Sequence[Ask],
    fault: Fault | None = None,
    after_events: int = 0,
    timeout_s: float = RUN_S,
) -> Run:
    """Ask everything at once; begin the fault once all streams together have brought so many events."""
    return asyncio.run(_play(stage, asks, fault, after_events, timeout_s))


async def _play(
    stage: Stage, asks: Sequence[Ask], fault: Fault | None, after_events: int, timeout_s: float
) -> Run:
    run = Run(asks, [])
    due = asyncio.Event()
    progress = Progress(lambda num_events: due.set() if num_events >= after_events else None)

    async def disturb() -> None:
        await due.wait()
        run.fault_s = time.monotonic()
        assert fault is not None
        await fault()

    disturber = asyncio.create_task(disturb()) if fault is not None else None
    try:
        clients = await _ask_over_all_urls(stage, asks, progress, timeout_s)
        if disturber is not None and due.is_set():
            async with asyncio.timeout(timeout_s):
                await disturber
    finally:
        if disturber is not None:
            disturber.cancel()
    run.histories = [client.history() for client in clients]
    return run


async def _ask_over_all_urls(
    stage: Stage, asks: Sequence[Ask], progress: Progress, timeout_s: float
) -> list[Client]:
    """Return the clients in the order of their requests."""
    num_urls = len(stage.urls)
    shares = [asks[number::num_urls] for number in range(num_urls)]
    answered = await asyncio.gather(
        *(ask_all(url, share, progress, timeout_s) for url, share in zip(stage.urls, shares, strict=True))
    )
    in_turns = itertools.chain.from_iterable(itertools.zip_longest(*answered))
    return [client for client in in_turns if client is not None]


def kill(*pids: int, number: signal.Signals = signal.SIGKILL) -> Fault:
    """Return the fault that processes get a signal."""

    async def fault() -> None:
        for pid in pids:
            say(pid, number)

    return fault


def stop_for(seconds: float, *pids: int) -> Fault:
    """Return the fault that processes stand still for a while and then go on, if they still exist."""
    return _stop(lambda: asyncio.sleep(seconds), pids)


def stop_until(condition: Callable[[], bool], *pids: int) -> Fault:
    """Return the fault that processes stand still until something holds, and then go on."""

    async def wait() -> None:
        while not condition():
            await asyncio.sleep(POLL_S)

    return _stop(wait, pids)


def _stop(wait: Fault, pids: Sequence[int]) -> Fault:
    async def fault() -> None:
        for pid in pids:
            say(pid, signal.SIGSTOP)
        try:
            await wait()
        finally:
            for pid in pids:
                say(pid, signal.SIGCONT)

    return fault


def found_differences(seen: Run, reference: Run) -> list[str]:
    """Return what differs from the undisturbed run, each with its request."""
    pairs = zip(seen.asks, seen.histories, reference.histories, strict=True)
    return [
        f"{number} {ask.path} {ask.body}: {found}"
        for number, (ask, history, expected) in enumerate(pairs)
        for found in differences(history, expected)
    ]


def disturb(stage: Stage, reference: Run, after_events: int, make_fault: Callable[[], Fault]) -> Run:
    """Ask all again and disturb it; the fault must change nothing, and must meet open streams.

    On a busy machine clients may read much at once: a fault that came when all was over is tried again.
    """
    for _ in range(NUM_TRIES):
        stage.wait_ready()
        run = play(stage, reference.asks, make_fault(), after_events)
        assert_identical(run, reference, stage)
        if run.num_open_at_fault():
            return run
    raise AssertionError("nothing was ever open when the fault came")


def assert_identical(seen: Run, reference: Run, stage: Stage) -> None:
    """Check that no client noticed anything but a pause."""
    if found := found_differences(seen, reference):
        shown = "\n".join(each[:600] for each in found[:8])
        raise AssertionError(f"{len(found)} differences\n{shown}\n{stage.logs()[-6000:]}")


def assert_only_connections_broke(run: Run, reference: Run) -> None:
    """Check that clients of one frontend saw their connections break, and the others nothing at all."""
    pairs = list(zip(run.histories, reference.histories, strict=True))
    lost = [(seen, expected) for seen, expected in pairs if seen.was_cut_off]
    found = [each for seen, expected in pairs if not seen.was_cut_off for each in differences(seen, expected)]
    assert found == []
    assert 0 < len(lost) < len(pairs), "one of two frontends was killed"
    assert all(seen.is_start_of(expected) for seen, expected in lost)
