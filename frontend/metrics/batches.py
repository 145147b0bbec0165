"""The figures of batches: what this frontend works on, and how the file store does."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from splitserve.frontend.metrics.process import PREFIX


def collect_batches(
    num_batches: int, num_lines: int, num_store_errors: int, frontend_id: str
) -> Iterable[Metric]:
    """Yield the families for one exposition.

    Args:
        num_batches: that this frontend works on.
        num_lines: of them in flight.
        num_store_errors: how often it could not use the file store.
        frontend_id: label of this process.
    """
    for name, value, text in (
        ("frontend_batches", num_batches, "Batches that this frontend works on."),
        ("frontend_batch_lines", num_lines, "Lines of batches in flight."),
    ):
        gauge = GaugeMetricFamily(f"{PREFIX}{name}", text, labels=["frontend"])
        gauge.add_metric([frontend_id], value)
        yield gauge
    errors = CounterMetricFamily(
        f"{PREFIX}frontend_file_store_errors",
        "Times that the file store could not be used.",
        labels=["frontend"],
    )
    errors.add_metric([frontend_id], num_store_errors)
    yield errors
