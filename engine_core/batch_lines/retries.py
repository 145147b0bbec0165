"""How long until a request is sent again? No I/O."""

from __future__ import annotations

import random

FIRST_WAIT_S = 0.5
MAX_WAIT_S = 30.0


def wait_s(num_failed: int, retry_after_s: float, rng: random.Random) -> float:
    """Return the wait after the `num_failed`-th failure in a row: as the server says, else doubled each time.

    It is random within a half to one and a half times, so that many requests do not come back at once.
    """
    base_s = retry_after_s or FIRST_WAIT_S * 2 ** min(num_failed - 1, 10)
    return min(base_s, MAX_WAIT_S) * rng.uniform(0.5 if not retry_after_s else 1.0, 1.5)
