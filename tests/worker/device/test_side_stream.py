"""Work beside the steps': whatever order a device may choose, nothing overtakes what it has to wait for."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch

from splitserve.worker.device.side_stream import CudaSideStream


class Event:
    """Happens when its stream comes to it."""

    has_happened = False


class Stream:
    """Holds what was enqueued."""

    def __init__(self) -> None:
        self.work: deque[Callable[[], None] | Event] = deque()

    def record_event(self) -> Event:
        event = Event()
        self.work.append(lambda: setattr(event, "has_happened", True))
        return event

    def wait_event(self, event: Event) -> None:
        self.work.append(event)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    @property
    def can_go_on(self) -> bool:
        if not self.work:
            return False
        head = self.work[0]
        return not isinstance(head, Event) or head.has_happened


class Streams:
    """Stands in for torch.cuda: two streams that go on as their events allow, in a random order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self._main, self._side = Stream(), Stream()
        self._current = self._main
        monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: self._side)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self._current)
        monkeypatch.setattr(torch.cuda, "stream", self._switched)

    def launch(self, name: str) -> None:
        """Enqueue a kernel on the current stream."""
        self._current.work.append(lambda: self.done.append(name))

    def run(self, rng: random.Random) -> None:
        while ready := [stream for stream in (self._main, self._side) if stream.can_go_on]:
            head = rng.choice(ready).work.popleft()
            if not isinstance(head, Event):
                head()
        assert not self._main.work
        assert not self._side.work

    @contextmanager
    def _switched(self, stream: Stream) -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before


def enqueue_two_steps(streams: Streams) -> None:
    side = CudaSideStream(torch.device("cuda", 0))
    streams.launch("step 0")
    wait_0, wait_1 = side.run(partial(streams.launch, name) for name in ("move 0", "move 1"))
    streams.launch("inputs")
    wait_0()
    streams.launch("layer 0")
    wait_1()
    streams.launch("layer 1")
    (wait_2,) = side.run([partial(streams.launch, "move 2")])
    wait_2()
    streams.launch("step 2")


def test_work_runs_beside_the_steps_between_what_it_waits_for_and_who_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng, orders = random.Random(1), set()
    for _ in range(200):
        streams = Streams(monkeypatch)
        enqueue_two_steps(streams)
        streams.run(rng)
        at = {name: i for i, name in enumerate(streams.done)}
        assert len(at) == 8
        assert at["step 0"] < at["move 0"] < at["layer 0"]
        assert at["move 0"] < at["move 1"] < at["layer 1"] < at["move 2"] < at["step 2"]
        orders.add(tuple(streams.done))
    # The inputs and the first layer need not wait, nor are they waited for.
    assert {order.index("inputs") < order.index("move 0") for order in orders} == {False, True}
    assert {order.index("layer 0") < order.index("move 1") for order in orders} == {False, True}
