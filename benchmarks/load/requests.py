"""S3: new requests all the time, of which some hang up. Does anything leak, how soon is a row free?"""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.load.census import Census
from benchmarks.load.clients import Clients, paced
from benchmarks.load.figures import spread
from benchmarks.load.options import Options
from benchmarks.load.plan import Ask, End, Plan, Report, Seen
from benchmarks.load.report import LevelReport
from benchmarks.load.servers import Layout, Servers
from benchmarks.load.timed_engine import right_text

HANG_UP_SHARE = 0.3
# An engine knows a request by the id of its response.
RESPONSE_PREFIX = "cmpl-"
WARM_UP_S = 10.0
SETTLE_S = 2.0
SETTLED_S = 30.0
MAX_ABORT_MS = 100.0
# Allocators keep a few pages more here and there.
MAX_GROWTH_MB = 8.0


def s3(options: Options, report: LevelReport) -> None:
    """Send requests at a steady pace."""
    layout = Layout(
        num_engines=1,
        num_frontends=options.frontends,
        step_ms=options.step_ms,
        num_rows=options.streams,
        num_waiting=4 * options.streams,
        max_requests=4 * options.streams,
        log_requests=True,
    )
    with tempfile.TemporaryDirectory(prefix="ssl-") as name:
        folder = Path(name)
        servers = Servers(folder, layout)
        try:
            _ask(folder, servers, "warm", options, min(WARM_UP_S, options.seconds))
            # Ended connections leave their descriptors a moment later.
            time.sleep(SETTLE_S)
            before = servers.look()
            found = _ask(folder, servers, "asked", options, options.seconds)
            after = _settled(servers, before)
            aborted = aborts(servers.log(0).read_text().splitlines())
            used = servers.metric("kv_cache_usage_perc")
        finally:
            servers.close()
    _describe(found, before, after, report)
    _check_clients(found.seen, aborted, report)
    report.at_most("share of KV blocks in use at the end", used, 0)
    _check_processes(before, after, report)


def aborts(lines: Iterable[str]) -> dict[str, float]:
    """Return when the engine ended each request that was aborted, by its id, from the lines of its log."""
    found = {}
    for line in lines:
        if '"abort"' not in line:
            continue
        entry = json.loads(line)
        if entry.get("event") == "request ended":
            found[str(entry["request_id"]).removeprefix(RESPONSE_PREFIX)] = datetime.fromisoformat(
                entry["time"]
            ).timestamp()
    return found


def _ask(folder: Path, servers: Servers, name: str, options: Options, seconds: float) -> Report:
    """Send what is due in so many seconds, and wait until the server is idle again."""
    rng = random.Random(f"{name} {options.rate}")
    life_s = options.tokens * options.step_ms / 1000
    asks = [
        _with_hang_up(ask, rng, life_s)
        for ask in paced(int(options.rate * seconds), options.rate, servers.ports, 1)
    ]
    body = {
        "prompt": [65, 66, 67, 68],
        "max_tokens": options.tokens,
        "ignore_eos": True,
        "stream": True,
    }
    plan = Plan(name, time.time() + 0.5, [body], [right_text(options.tokens)], asks)
    clients = Clients(folder, plan, options.clients)
    try:
        report = clients.finish(seconds + 300)
    finally:
        clients.kill()
    servers.wait_until(servers.is_idle)
    return report


def _settled(servers: Servers, before: dict[str, Census]) -> dict[str, Census]:
    """Return the processes as they are when their descriptors are as few as before, or will not be."""
    with contextlib.suppress(TimeoutError):
        servers.wait_until(
            lambda: all(now.num_fds <= before[name].num_fds for name, now in servers.look().items()),
            SETTLED_S,
        )
    return servers.look()


def _with_hang_up(ask: Ask, rng: random.Random, life_s: float) -> Ask:
    if rng.random() >= HANG_UP_SHARE:
        return ask
    return msgspec.structs.replace(ask, hang_up_s=rng.uniform(0.001, life_s))


def _describe(
    found: Report, before: dict[str, Census], after: dict[str, Census], report: LevelReport
) -> None:
    seen = found.seen
    num = len(seen)
    sent_s = [stream.sent_s for stream in seen]
    ends = {end: sum(stream.end is end for stream in seen) for end in End}
    first_s = [stream.times_s[0] - stream.sent_s for stream in seen if len(stream.times_s)]
    frontend_s, engine_s = (
        sum(after[name].cpu_s - before[name].cpu_s for name in before if name.startswith(kind))
        for kind in ("frontend", "engine")
    )
    report.figures |= {
        "requests": num,
        "requests/s": num / max(1e-9, max(sent_s) - min(sent_s)),
        "ends": ", ".join(f"{count} {end.name.lower()}" for end, count in ends.items() if count),
        "TTFT, ms": spread([np.array(first_s)]),
        "ms of CPU per request: frontends, engine, clients": ", ".join(
            f"{1e3 * cpu_s / num:.2f}" for cpu_s in (frontend_s, engine_s, found.cpu_s)
        ),
    }


def _check_clients(seen: list[Seen], aborted: dict[str, float], report: LevelReport) -> None:
    hung_up = [stream for stream in seen if stream.end is End.HUNG_UP]
    known = [stream for stream in hung_up if stream.request_id in aborted]
    late = spread([np.array([aborted[stream.request_id] - stream.ended_s for stream in known])])
    report.figures["hang-up to freed row, ms"] = late
    # The others had not reached the engine yet, or had just ended there.
    report.figures["hung up, and aborted by the engine"] = f"{len(hung_up)}, {len(known)}"
    wrong = sum(stream.end not in (End.WHOLE, End.HUNG_UP) or not stream.is_right for stream in seen)
    report.at_most("refused, failed or wrong streams", wrong, 0)
    report.at_most("abort p99", late.p99, MAX_ABORT_MS, " ms")


def _check_processes(before: dict[str, Census], after: dict[str, Census], report: LevelReport) -> None:
    for name, then in before.items():
        now = after[name]
        report.at_most(f"{name}: more descriptors", now.num_fds - then.num_fds, 0)
        report.at_most(f"{name}: more threads", now.num_threads - then.num_threads, 0)
        grown_mb = (now.rss_bytes - then.rss_bytes) / 1e6
        report.at_most(f"{name}: memory grown", grown_mb, MAX_GROWTH_MB, " MB")
