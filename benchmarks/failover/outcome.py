"""What did one fault cost the streams that were open, and what do many faults together say?"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.failover.watch import Watch
from tests.history import History, differences
from tests.system.nemesis.play import Run

MAX_SHOWN = 5


@dataclass
class Outcome:
    """What came of one run.

    Attributes:
        num_streams: requests asked, of which `num_open` were open when the fault came.
        num_whole: those that came to their ends without an error.
        num_identical: those that do not differ from the undisturbed run.
        gaps_s: longest pause after the fault of each open stream, less its usual time between two events.
        told_s: from the fault until /ready said that the server is not ready; None if it never had to.
        ready_s: from the fault until the server is ready again; None if it never said that it is not.
        faults: what clients saw that they must not see, and differences, a few of them.
        figures: what a scenario measures besides.
    """

    num_streams: int = 0
    num_open: int = 0
    num_whole: int = 0
    num_identical: int = 0
    gaps_s: list[float] = field(default_factory=list)
    told_s: float | None = None
    ready_s: float | None = None
    faults: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)


def judge(run: Run, reference: Run, watch: Watch) -> Outcome:
    """Compare a run with the undisturbed one."""
    pairs = list(zip(run.histories, reference.histories, strict=True))
    found = [differences(seen, expected) for seen, expected in pairs]
    outcome = Outcome(
        len(pairs),
        run.num_open_at_fault(),
        sum(seen.is_whole for seen, _ in pairs),
        sum(not each for each in found),
        [net_gap_s(seen, expected, run.fault_s) for seen, expected in pairs if seen.was_open(run.fault_s)],
        faults=[text[:300] for each in found for text in each][:MAX_SHOWN],
    )
    judge_times(outcome, watch, run.fault_s)
    return outcome


def judge_times(outcome: Outcome, watch: Watch, fault_s: float) -> None:
    """Enter what the watch saw of a fault."""
    ready_s, told_s = watch.ready_s(fault_s), watch.told_s(fault_s)
    outcome.ready_s = ready_s - fault_s if ready_s is not None else None
    outcome.told_s = told_s - fault_s if told_s is not None else None


def net_gap_s(seen: History, reference: History, fault_s: float) -> float:
    """Return by how much the longest pause after a fault exceeds the stream's usual one."""
    times_s = reference.times_s
    usual = [later - earlier for earlier, later in itertools.pairwise(times_s)]
    return max(0.0, seen.longest_gap_s(fault_s) - (statistics.median(usual) if usual else 0.0))


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed; NaN if there are none."""
    if not values:
        return float("nan")
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


HEAD = (
    f"{'scenario':<22}{'runs':>5}{'streams':>8}{'open':>7}{'whole':>8}{'same':>8}"
    f"{'gap p50':>9}{'p99':>7}{'max':>7}{'told':>7}{'ready':>7}"
)


def line(name: str, outcomes: Sequence[Outcome]) -> str:
    """Return a row under HEAD: sums over the runs, then seconds; of times the medians."""
    streams, still_open = (sum(getattr(o, n) for o in outcomes) for n in ("num_streams", "num_open"))
    shares = [
        f"{100 * sum(getattr(o, n) for o in outcomes) / streams:7.1f}%" if streams else f"{'-':>8}"
        for n in ("num_whole", "num_identical")
    ]
    gaps = [gap for outcome in outcomes for gap in outcome.gaps_s]
    cells = [quantile(gaps, 0.5), quantile(gaps, 0.99), max(gaps, default=float("nan"))]
    times = [
        [getattr(outcome, n) for outcome in outcomes if getattr(outcome, n) is not None]
        for n in ("told_s", "ready_s")
    ]
    medians = [statistics.median(each) if each else float("nan") for each in times]
    widths = (9, 7, 7, 7, 7)
    shown = "".join(f"{value:{width}.2f}" for value, width in zip([*cells, *medians], widths, strict=True))
    return f"{name:<22}{len(outcomes):>5}{streams:>8}{still_open:>7}{''.join(shares)}{shown}".replace(
        "nan", "  -"
    )
