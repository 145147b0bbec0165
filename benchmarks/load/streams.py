"""S1, S2, S7: many open streams. Do all tokens arrive, in order and soon, and what does a stream cost?

S7 holds the streams twice: all clients read, then a fifth reads a byte per second and a twentieth is gone.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.frontend import CONTEXT_TOKENS, WARM_UP_STREAMS
from benchmarks.load.census import Census
from benchmarks.load.clients import Clients, paced
from benchmarks.load.figures import Spread, delays, gaps, spread, within
from benchmarks.load.options import Options
from benchmarks.load.plan import Ask, End, FloatColumn, Plan, Reader, Seen
from benchmarks.load.report import LevelReport
from benchmarks.load.servers import Layout, Servers
from benchmarks.load.timed_engine import right_text

OPEN_LIMIT_S = 300.0
MAX_TOKENS = CONTEXT_TOKENS - 64
WARM_UP_TOKENS = 2
MAX_KB_PER_STREAM = 60.0
MAX_ADDED_MS = 50.0
MAX_ITL_RATIO = 1.1
MAX_STEP_RATIO = 1.05
# A twentieth is gone, a fifth is slow, the rest reads.
MIXED = [Reader.GONE, *[Reader.SLOW] * 4, *[Reader.EAGER] * 15]


class Moment(NamedTuple):
    """One end of the window."""

    at_s: float
    server: dict[str, Census]
    client_cpu_s: float


class Held(NamedTuple):
    """Streams that were held open.

    Attributes:
        idle: the server's processes after a warm-up, before the streams.
        begin, end: of the window in which none began or ended.
        steps_s: by engine, when its steps were over.
        engine_of: by port.
    """

    idle: dict[str, Census]
    begin: Moment
    end: Moment
    seen: list[Seen]
    steps_s: list[FloatColumn]
    engine_of: dict[int, int]

    @property
    def readers(self) -> list[Seen]:
        """The streams whose clients read all the time."""
        return [stream for stream in self.seen if stream.reader is Reader.EAGER]

    def added(self) -> Spread:
        """Times from the end of each step to its events, of streams that are read."""
        columns = []
        for stream in self.readers:
            delay_s = delays(self.steps_s[self.engine_of[stream.port]], stream.times_s, stream.chars)
            columns.append(delay_s[within(stream.times_s, self.begin.at_s, self.end.at_s)])
        return spread(columns)

    def gaps(self) -> Spread:
        """Times between the events of each stream that is read."""
        return gaps(self.readers, self.begin.at_s, self.end.at_s)

    def steps(self) -> Spread:
        """Times between the ends of steps, of all engines."""
        return spread(
            np.diff(steps_s[within(steps_s, self.begin.at_s, self.end.at_s)]) for steps_s in self.steps_s
        )

    def num_wrong(self) -> int:
        """Return the number of streams that ended, told of an error, or brought other text than theirs."""
        return sum(stream.end is not End.OPEN or not stream.is_right for stream in self.readers)


def s1(options: Options, report: LevelReport) -> None:
    """Hold very many slow streams."""
    held = hold(options, [Reader.EAGER])
    _describe(held, options, report)
    report.at_most("wrong or ended streams", held.num_wrong(), 0)
    report.at_most("frontend memory per stream", _kb_per_stream(held, options), MAX_KB_PER_STREAM, " KB")
    report.at_most("added latency p99", held.added().p99, MAX_ADDED_MS, " ms")


def s2(options: Options, report: LevelReport) -> None:
    """Hold streams of many tokens per second."""
    held = hold(options, [Reader.EAGER])
    _describe(held, options, report)
    report.at_most("wrong or ended streams", held.num_wrong(), 0)
    ratio = held.steps().p50 / options.step_ms
    report.at_most("median step, against its simulated time", ratio, MAX_STEP_RATIO)


def s7(options: Options, report: LevelReport) -> None:
    """Hold streams with and without slow clients beside them."""
    alone = hold(options, [Reader.EAGER])
    mixed = hold(options, MIXED)
    _describe(alone, options, report, "all read: ")
    _describe(mixed, options, report, "a quarter does not: ")
    ends = Counter((s.reader.name, s.end.name) for s in mixed.seen if s.reader is not Reader.EAGER)
    report.figures["how those are left who do not read"] = ", ".join(
        f"{reader.lower()} {end.lower()} {count}" for (reader, end), count in sorted(ends.items())
    )
    report.at_most("wrong or ended streams", alone.num_wrong() + mixed.num_wrong(), 0)
    ratio = mixed.gaps().p99 / alone.gaps().p99
    report.at_most("ITL p99 of those who read, against all reading", ratio, MAX_ITL_RATIO)


def hold(options: Options, readers: list[Reader]) -> Held:
    """Start servers, open streams that are read in these ways in turns, and close them after the window."""
    layout = Layout(
        num_engines=options.engines,
        num_frontends=options.frontends,
        step_ms=options.step_ms,
        num_rows=options.streams + WARM_UP_STREAMS * options.frontends,
        num_waiting=options.streams,
        max_requests=options.streams + WARM_UP_STREAMS,
        shared=options.engines == 1,
    )
    with tempfile.TemporaryDirectory(prefix="ssl-") as name:
        folder = Path(name)
        servers = Servers(folder, layout)
        try:
            return _hold(folder, servers, options, readers)
        finally:
            servers.close()


def _hold(folder: Path, servers: Servers, options: Options, readers: list[Reader]) -> Held:
    warm_up = [Ask(0.0, port, 1) for port in servers.ports * WARM_UP_STREAMS]
    Clients(folder, _plan("warm", warm_up), 1).finish()
    servers.wait_until(servers.is_idle)
    idle = servers.look()
    # Those who read first: the server gives the others up after a while, maybe while streams still open.
    ways = sorted(readers[i % len(readers)] for i in range(options.streams))
    asks = [
        msgspec.structs.replace(ask, reader=way)
        for ask, way in zip(_staggered(servers, options), ways, strict=True)
    ]
    num_read = ways.count(Reader.EAGER)
    clients = Clients(folder, _plan("hold", asks), options.clients)
    try:
        servers.wait_until(lambda: servers.metric("num_requests_running") >= num_read, OPEN_LIMIT_S)
        time.sleep(options.settle_s + options.step_ms / 1000)
        begin = Moment(time.time(), servers.look(), clients.cpu_s)
        time.sleep(options.seconds)
        end = Moment(time.time(), servers.look(), clients.cpu_s)
        seen = clients.stop().seen
    finally:
        clients.kill()
    steps_s = [servers.steps_s(engine) for engine in range(options.engines)]
    engine_of = {port: servers.engine_of(port) for port in servers.ports}
    return Held(idle, begin, end, seen, steps_s, engine_of)


def _staggered(servers: Servers, options: Options) -> list[Ask]:
    """Return an ask per stream; several engines take their steps in turns, not all at the same moment."""
    step_s = options.step_ms / 1000
    asks = paced(options.streams, options.rate, servers.ports, 1)
    if options.engines == 1:
        return asks
    later_s = {port: servers.engine_of(port) * step_s / options.engines for port in servers.ports}
    asks = [msgspec.structs.replace(ask, at_s=ask.at_s + later_s[ask.port]) for ask in asks]
    return sorted(asks, key=lambda ask: ask.at_s)


def _plan(name: str, asks: list[Ask]) -> Plan:
    lengths = (MAX_TOKENS, WARM_UP_TOKENS)
    bodies = [
        {"prompt": [65, 66, 67, 68], "max_tokens": length, "ignore_eos": True, "stream": True}
        for length in lengths
    ]
    return Plan(name, time.time(), bodies, [right_text(length) for length in lengths], asks)


def _describe(held: Held, options: Options, report: LevelReport, prefix: str = "") -> None:
    """Add what is measured of any streams."""
    begin, end = held.begin, held.end
    seconds = end.at_s - begin.at_s
    windows = [(s, within(s.times_s, begin.at_s, end.at_s)) for s in held.readers]
    num_events = sum(window.stop - window.start for _, window in windows)
    num_tokens = sum(
        int(s.chars[window.stop - 1] - s.chars[window.start - 1])
        for s, window in windows
        if window.start and window.stop
    )
    share = len(held.readers) / max(1, len(held.seen))
    all_tokens = max(1.0, num_tokens / share)
    engine_s, frontend_s = (_cpu_s(held, kind) for kind in ("engine", "frontend"))
    client_s = end.client_cpu_s - begin.client_cpu_s
    report.figures |= {
        prefix + "tokens/s": all_tokens / seconds,
        prefix + "tokens per event": num_tokens / max(1, num_events),
        prefix + "added latency, ms": held.added(),
        prefix + "ITL, ms": held.gaps(),
        prefix + "time between steps, ms": held.steps(),
        prefix + "frontend KB per stream (RSS)": _kb_per_stream(held, options),
        prefix + "frontend us per token": frontend_s / all_tokens * 1e6,
        prefix + "engine us per token": engine_s / all_tokens * 1e6,
        prefix + "client us per token": client_s / all_tokens * 1e6,
        prefix + "cores: frontends, engine, clients": ", ".join(
            f"{cpu_s / seconds:.2f}" for cpu_s in (frontend_s, engine_s, client_s)
        ),
    }


def _kb_per_stream(held: Held, options: Options) -> float:
    grown = sum(
        held.end.server[name].rss_bytes - before.rss_bytes
        for name, before in held.idle.items()
        if name.startswith("frontend")
    )
    return grown / 1000 / options.streams


def _cpu_s(held: Held, kind: str) -> float:
    names = [name for name in held.idle if name.startswith(kind)]
    return sum(held.end.server[name].cpu_s - held.begin.server[name].cpu_s for name in names)
