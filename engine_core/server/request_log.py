"""What is logged about requests: a line when one ends, and one when it has waited long; never their text.

A request for vectors is many requests here, one for each of its inputs. Those that made their vector are
logged at DEBUG: the frontend has a line for all of them.
"""

from __future__ import annotations

import logging

from splitserve.engine_core.ipc.messages import RequestInfo
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.process.logs import log_event
from splitserve.engine_core.request import RequestSummary
from splitserve.engine_core.server.frontends import FrontendTable

_log = logging.getLogger("engine_core")


class RequestLog:
    """Listens to the engine; owned by the busy loop's thread.

    Args:
        table: gives the frontends' names.
    """

    def __init__(self, table: FrontendTable) -> None:
        self._table = table
        self._pools = False

    def serve(self, model: ModelInfo) -> None:
        """Log the requests of this model from now on."""
        self._pools = model.pooled_size > 0

    def ended(self, summary: RequestSummary) -> None:
        """Log one line for a request that ended, without its text."""
        is_vector = self._pools and summary.outcome not in ("abort", "error")
        log_event(
            _log,
            logging.DEBUG if is_vector else logging.INFO,
            "request ended",
            request_id=summary.request_id,
            frontend=self._table.name(summary.frontend),
            outcome=summary.outcome,
            prompt_tokens=summary.num_prompt_tokens,
            output_tokens=summary.num_output_tokens,
            cached_tokens=summary.num_cached_tokens,
            preemptions=summary.num_preemptions,
            queue_s=summary.queue_time_s,
            total_s=summary.total_time_s,
        )

    def waits(self, request: RequestInfo) -> None:
        """Log one line for a request that has waited long."""
        log_event(
            _log,
            logging.WARNING,
            "request waits",
            request_id=request.request_id,
            waits_for=request.waits_for.name.lower(),
            prompt_tokens=request.num_prompt_tokens,
            age_s=request.age_s,
        )
