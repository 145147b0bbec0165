"""Random scenarios without end: python -m tests.engine_core.soak [--seconds S] [--events N] [--seed N]

Every scenario has a seed of its own, counted up from one drawn at the start. The first failure ends the
run with a traceback that names the seed; --seed plays that scenario alone.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Sequence

from tests.engine_core.scenarios import Tally, run_scenario

REPORT_S = 10.0


def soak(first_seed: int, seconds: float, max_events: int) -> int:
    """Play scenarios for so long, at least one; returns how many, all of which passed."""
    started_s = reported_s = time.monotonic()
    totals = Tally(*[0] * len(Tally._fields))
    count = 0
    while count == 0 or time.monotonic() - started_s < seconds:
        tally = run_scenario(first_seed + count, max_events)
        count += 1
        totals = Tally(*map(sum, zip(totals, tally, strict=True)))
        if time.monotonic() - reported_s > REPORT_S:
            reported_s = time.monotonic()
            print(f"{reported_s - started_s:.0f} s: {count} scenarios, {totals}", flush=True)
    print(f"passed: {count} scenarios from seed {first_seed}, {totals}")
    return count


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--events", type=int, default=60, help="most events of a scenario")
    parser.add_argument("--seed", type=int, help="play the scenario of this seed only")
    flags = parser.parse_args(arguments)
    if flags.seed is None:
        soak(secrets.randbits(40), flags.seconds, flags.events)
    else:
        soak(flags.seed, 0, flags.events)
    return 0


if __name__ == "__main__":
    sys.exit(main())
