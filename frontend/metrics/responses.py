"""The figures of the Responses API: what runs in the background, and how the store does."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from splitserve.frontend.metrics.process import PREFIX


def collect_responses(num_background: int, num_store_errors: int, frontend_id: str) -> Iterable[Metric]:
    """Yield the families for one exposition.

    Args:
        num_background: responses that this frontend generates in the background.
        num_store_errors: how often it could not use the response store.
        frontend_id: label of this process.
    """
    running = GaugeMetricFamily(
        f"{PREFIX}frontend_background_responses", "Responses in the background.", labels=["frontend"]
    )
    running.add_metric([frontend_id], num_background)
    yield running
    errors = CounterMetricFamily(
        f"{PREFIX}frontend_response_store_errors",
        "Times that the response store could not be used.",
        labels=["frontend"],
    )
    errors.add_metric([frontend_id], num_store_errors)
    yield errors
