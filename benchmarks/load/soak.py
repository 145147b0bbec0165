"""S5: streams of all lengths while engines are killed. Does each end as if nothing had been?

Every body is answered once before, undisturbed; later answers must have the same text.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.load.clients import Clients, paced
from benchmarks.load.figures import gaps, slope_mb_per_h, spread
from benchmarks.load.options import Options
from benchmarks.load.plan import End, Plan, Report
from benchmarks.load.report import LevelReport
from benchmarks.load.servers import Layout, Servers

NUM_BODIES = 200
LENGTHS = (1, 20, 100, 400)
SAMPLE_S = 1.0
MAX_SLOPE_MB_PER_H = 1.0
# A slope over a shorter time is that of caches which are still filling.
LEAST_S_TO_JUDGE_MEMORY = 1800.0


class MemoryCurves:
    """Resident memory of each process over time; a process that is started again begins anew."""

    def __init__(self) -> None:
        self._curves: dict[str, tuple[list[float], list[int]]] = {}

    def note(self, servers: Servers) -> None:
        """Look at all processes now."""
        for name, found in servers.look().items():
            times_s, sizes = self._curves.setdefault(name, ([], []))
            times_s.append(time.monotonic())
            sizes.append(found.rss_bytes)

    def forget(self, name: str) -> None:
        """Begin anew: this process is another now."""
        self._curves.pop(name, None)

    def slopes(self) -> dict[str, tuple[float, float]]:
        """Return seconds of the curve and MB per hour of each process."""
        return {
            name: (times_s[-1] - times_s[0], slope_mb_per_h(times_s, sizes))
            for name, (times_s, sizes) in self._curves.items()
        }


def make_bodies(rng: random.Random) -> list[dict[str, object]]:
    """Draw requests of all lengths, greedy and sampled."""
    return [
        {
            "prompt": [rng.randrange(8, 2000) for _ in range(rng.choice((4, 40, 400)))],
            "max_tokens": max(1, int(rng.choice(LENGTHS) * rng.uniform(0.5, 1.5))),
            "temperature": rng.choice((0, 0.8)),
            "seed": rng.getrandbits(32),
            "ignore_eos": True,
            "stream": True,
        }
        for _ in range(NUM_BODIES)
    ]


def s5(options: Options, report: LevelReport) -> None:
    """Keep so many streams open, and kill an engine now and then."""
    layout = Layout(
        num_engines=options.engines,
        num_frontends=options.frontends,
        step_ms=options.step_ms,
        num_rows=2 * options.streams,
        num_waiting=options.streams + NUM_BODIES,
        max_requests=options.streams + NUM_BODIES,
        timed=False,
    )
    rng = random.Random(5)
    bodies = make_bodies(rng)
    with tempfile.TemporaryDirectory(prefix="ssl-") as name:
        folder = Path(name)
        servers = Servers(folder, layout)
        try:
            alone = _answer_alone(folder, servers, bodies)
            curves = MemoryCurves()
            plan = Plan(
                "soak",
                time.time() + 0.5,
                bodies,
                alone,
                paced(options.streams, options.rate, servers.ports, NUM_BODIES),
                again_s=options.seconds,
            )
            found, num_kills = _kill_under(folder, servers, plan, options, curves, rng)
            servers.wait_until(servers.is_idle)
        finally:
            servers.close()
    _describe(found, num_kills, curves, report)


def _answer_alone(folder: Path, servers: Servers, bodies: list[dict[str, object]]) -> list[str]:
    """Return the right text of each body."""
    asks = paced(len(bodies), 100.0, servers.ports, len(bodies))
    plan = Plan("alone", time.time(), bodies, [""] * len(bodies), asks)
    seen = Clients(folder, plan, 1).finish().seen
    assert all(stream.end is End.WHOLE for stream in seen)
    texts = {stream.body: stream.text for stream in seen}
    return [texts[i] for i in range(len(bodies))]


def _kill_under(
    folder: Path, servers: Servers, plan: Plan, options: Options, curves: MemoryCurves, rng: random.Random
) -> tuple[Report, int]:
    """Run the plan, killing engines; return what the clients saw and the number of kills."""
    clients = Clients(folder, plan, options.clients)
    num_kills = 0
    try:
        next_kill_s = plan.start_s + options.kill_every_s
        last_kill_s = plan.start_s + options.seconds
        while clients.are_running:
            time.sleep(SAMPLE_S)
            if next_kill_s <= min(time.time(), last_kill_s):
                number = rng.randrange(options.engines)
                servers.kill_engine(number)
                curves.forget(f"engine {number}")
                num_kills += 1
                next_kill_s += options.kill_every_s
            curves.note(servers)
        return clients.finish(), num_kills
    finally:
        clients.kill()


def _describe(found: Report, num_kills: int, curves: MemoryCurves, report: LevelReport) -> None:
    seen = found.seen
    ends = Counter(stream.end for stream in seen)
    errors = Counter(stream.error for stream in seen if stream.error)
    report.figures |= {
        "streams": len(seen),
        "tokens, at least": sum(len(stream.times_s) for stream in seen),
        "kills": num_kills,
        "ends": ", ".join(f"{count} {end.name.lower()}" for end, count in ends.items()),
        "errors": ", ".join(f"{count} {code}" for code, count in errors.items()) or "none",
        "ITL, ms": gaps(seen, 0.0, time.time()),
        "longest gap of each stream, ms": spread(
            [
                (stream.times_s[1:] - stream.times_s[:-1]).max(keepdims=True)
                for stream in seen
                if len(stream.times_s) > 1
            ]
        ),
    }
    whole = sum(stream.end is End.WHOLE and stream.is_right for stream in seen)
    report.at_least("streams whole and unchanged", 100.0 * whole / max(1, len(seen)), 100.0, " %")
    for name, (seconds, slope) in curves.slopes().items():
        report.figures[f"{name}: memory, MB/h over {seconds:.0f} s"] = slope
        if seconds >= LEAST_S_TO_JUDGE_MEMORY:
            report.at_most(f"{name}: memory", slope, MAX_SLOPE_MB_PER_H, " MB/h")
