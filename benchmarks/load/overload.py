"""S4: three times the load that the server can bear. Goodput, refusals, recovery?

before     as many clients as the server has rows, each with a new request when one has ended: its capacity
overload   three times as many requests per second, whether the server answers or not
after      four fifths of the capacity
"""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.load.clients import Clients, paced
from benchmarks.load.figures import Spread, recovery_s, spread
from benchmarks.load.options import Options
from benchmarks.load.plan import Ask, End, Plan, Report, Seen
from benchmarks.load.report import LevelReport
from benchmarks.load.servers import Layout, Servers
from benchmarks.load.timed_engine import right_text

OVERLOAD = 3.0
AFTERWARDS = 0.8
BEFORE_S = 20.0
AFTER_S = 30.0
MAX_REFUSAL_MS = 50.0
MAX_RECOVERY_S = 10.0
LEAST_GOODPUT = 0.95
# Requests may wait for as many others as there are rows, so for about the time of one request.
TTFT_TARGET = 2.0


def s4(options: Options, report: LevelReport) -> None:
    """Measure the capacity, then ask for more."""
    layout = Layout(
        num_engines=1,
        num_frontends=options.frontends,
        step_ms=options.step_ms,
        num_rows=options.streams,
        num_waiting=options.streams,
        max_requests=8 * options.streams,
    )
    with tempfile.TemporaryDirectory(prefix="ssl-") as name:
        folder = Path(name)
        servers = Servers(folder, layout)
        try:
            capacity, normal = _capacity(folder, servers, options)
            begin_s = time.time() + 0.5
            found = _overload(folder, servers, options, capacity, begin_s)
        finally:
            servers.close()
    _describe(found, capacity, normal, begin_s, options, report)


def _plan(name: str, start_s: float, asks: list[Ask], tokens: int, again_s: float = 0.0) -> Plan:
    body = {"prompt": [65, 66, 67, 68], "max_tokens": tokens, "ignore_eos": True, "stream": True}
    return Plan(name, start_s, [body], [right_text(tokens)], asks, again_s)


def _capacity(folder: Path, servers: Servers, options: Options) -> tuple[float, Spread]:
    """Return the requests per second that end, and times to first token, while all rows are taken."""
    asks = paced(2 * options.streams, 1000.0, servers.ports, 1)
    start_s = time.time()
    before_s = min(BEFORE_S, options.seconds)
    plan = _plan("before", start_s, asks, options.tokens, before_s)
    seen = Clients(folder, plan, options.clients).finish().seen
    # The first third is left out: the rows fill, and the clients are in step.
    begin_s, end_s = start_s + before_s / 3, start_s + before_s
    ended = sum(begin_s <= stream.ended_s < end_s and stream.end is End.WHOLE for stream in seen)
    first_s = [first_token_s(stream) for stream in seen if begin_s <= stream.sent_s < end_s]
    return ended / (end_s - begin_s), spread([np.array(first_s)])


def _overload(folder: Path, servers: Servers, options: Options, capacity: float, begin_s: float) -> Report:
    rate = OVERLOAD * capacity
    asks = paced(int(rate * options.seconds), rate, servers.ports, 1)
    rate = AFTERWARDS * capacity
    after_s = min(AFTER_S, options.seconds)
    asks += [
        Ask(options.seconds + ask.at_s, ask.port, ask.body)
        for ask in paced(int(rate * after_s), rate, servers.ports, 1)
    ]
    clients = Clients(folder, _plan("over", begin_s, asks, options.tokens), options.clients)
    try:
        return clients.finish(options.seconds + after_s + 120)
    finally:
        clients.kill()


def first_token_s(stream: Seen) -> float:
    """Return the time to first token; infinite for a stream without."""
    return float(stream.times_s[0] - stream.sent_s) if len(stream.times_s) else math.inf


def _describe(
    found: Report, capacity: float, normal: Spread, begin_s: float, options: Options, report: LevelReport
) -> None:
    end_s = begin_s + options.seconds
    target_s = TTFT_TARGET * options.tokens * options.step_ms / 1000
    # The window begins when the rows have filled.
    warm_s = begin_s + 2 * target_s
    over = [stream for stream in found.seen if stream.sent_s < end_s]
    refused = [stream for stream in over if stream.end is End.REFUSED]
    admitted = [stream for stream in over if stream.end is not End.REFUSED]
    good = sum(
        warm_s <= stream.ended_s < end_s
        and stream.end is End.WHOLE
        and stream.is_right
        and first_token_s(stream) <= target_s
        for stream in admitted
    )
    first = spread([np.array([first_token_s(stream) for stream in admitted])])
    refusals = spread([np.array([stream.ended_s - stream.sent_s for stream in refused])])
    asks = [(stream.sent_s, first_token_s(stream)) for stream in found.seen]
    report.figures |= {
        "capacity, requests/s": capacity,
        "offered, requests/s": len(over) / options.seconds,
        "goodput, requests/s": good / (end_s - warm_s),
        "refused": f"{len(refused)} of {len(over)}: {sorted({(s.status, s.error) for s in refused})}",
        "TTFT at capacity, ms": normal,
        "TTFT of admitted requests, ms": first,
        "refusal, ms": refusals,
        "client cores": found.cpu_s / (options.seconds + min(AFTER_S, options.seconds)),
    }
    wrong = sum(s.end not in (End.WHOLE, End.REFUSED) or not s.is_right for s in found.seen)
    report.at_most("failed or wrong streams", wrong, 0)
    report.at_least("goodput, share of capacity", good / (end_s - warm_s) / capacity, LEAST_GOODPUT)
    report.at_most("refusal p99", refusals.p99, MAX_REFUSAL_MS, " ms")
    report.at_most("TTFT p99 of admitted requests", first.p99, 1e3 * target_s, " ms")
    recovered_s = recovery_s(asks, end_s, normal.p99 / 1e3)
    report.at_most("back to normal after", recovered_s, MAX_RECOVERY_S, " s")
