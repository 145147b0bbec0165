"""Merges several expositions of Prometheus' text format into one, keeping each family's samples together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

_BEGIN = b"# HELP "


def merge(expositions: Sequence[bytes]) -> bytes:
    """Merge the expositions of frontends of the same version; no two may share a series.

    They are merged family by family as text: parsing every sample would block the event loop.
    """
    families: dict[bytes, list[bytes]] = {}
    for exposition in expositions:
        # A line break within a label is escaped, so no label's text can start a family.
        for family in (b"\n" + exposition).split(b"\n" + _BEGIN)[1:]:
            about, kind, *samples = family.rstrip(b"\n").split(b"\n")
            families.setdefault(about + b"\n" + kind, []).extend(samples)
    blocks = [b"\n".join([_BEGIN + head, *samples]) for head, samples in families.items()]
    return b"\n".join([*blocks, b""])


class Labelled(Collector):
    """A collector's families with one label added to every sample that lacks it."""

    def __init__(self, inner: Collector, name: str, value: str) -> None:
        self._inner = inner
        self._label = {name: value}

    def collect(self) -> Iterable[Metric]:
        """Yield the families."""
        for metric in self._inner.collect():
            metric.samples = [
                sample._replace(labels=self._label | sample.labels) for sample in metric.samples
            ]
            yield metric
