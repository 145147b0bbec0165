"""Several expositions of Prometheus' text format as one: the samples of a family stand together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

_BEGIN = b"# HELP "


def merge(expositions: Sequence[bytes]) -> bytes:
    """Join what frontends of the same version exposed, no two of them with the same series.

    They are joined family by family as text: to parse every sample would keep the event loop from tokens.
    """
    families: dict[bytes, list[bytes]] = {}
    for exposition in expositions:
        # A line break within a label is escaped, so that no text of a label begins a family.
        for family in (b"\n" + exposition).split(b"\n" + _BEGIN)[1:]:
            about, kind, *samples = family.rstrip(b"\n").split(b"\n")
            families.setdefault(about + b"\n" + kind, []).extend(samples)
    blocks = [b"\n".join([_BEGIN + head, *samples]) for head, samples in families.items()]
    return b"\n".join([*blocks, b""])


class Labelled(Collector):
    """The families of a collector with one more label on every sample that lacks it."""

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
