"""Who is told about an engine's requests and prefixes, other than its frontends?"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from splitserve.engine_core.ipc.messages import RequestInfo
from splitserve.engine_core.kv_events.recorder import KVEventRecorder
from splitserve.engine_core.request import RequestSummary


class Listeners(NamedTuple):
    """Callbacks, all called on the engine's thread.

    Attributes:
        kv_events: told which prefixes are cached and which no longer are.
        on_end: called with every request that ends, for whatever reason.
        on_wait: called once with every request that has waited for config.log_wait_s.
    """

    kv_events: KVEventRecorder | None = None
    on_end: Callable[[RequestSummary], None] | None = None
    on_wait: Callable[[RequestInfo], None] | None = None


NO_LISTENERS = Listeners()
