"""Which requests do the steps in flight compute?"""

from __future__ import annotations

from collections.abc import Iterable

from splitserve.engine_core.request import Request
from splitserve.engine_core.scheduler.pacing.chunks import PlannedStep
from splitserve.engine_core.scheduler.running import RunningRows


def requests_in_flight(in_flight: Iterable[PlannedStep], running: RunningRows) -> list[Request]:
    """Return each request once, in the order of the steps and their rows; rows left meanwhile are skipped."""
    found: dict[Request, None] = {}
    for step in in_flight:
        rows = step.rows[running.first_step[step.rows] <= step.step]
        found.update(dict.fromkeys(running.requests_at(rows)))
    return list(found)
