"""Graphs share a pool of memory, and a capture leaves nothing behind but its graph."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from splitserve.worker.device.captures import Captures


class FakeCuda:
    """Stands in for torch.cuda.

    As its allocator does, it refuses to share a pool that no graph has any more; and as its captures do, it
    wants to be ended on the stream it began on.
    """

    def __init__(self) -> None:
        self.pools: dict[int, weakref.WeakSet[FakeGraph]] = {}
        self.stream_now = "default"
        self.calls: list[str] = []
        self.cannot_end = False

    @contextmanager
    def stream(self, stream: str) -> Iterator[None]:
        before, self.stream_now = self.stream_now, stream
        try:
            yield
        finally:
            self.stream_now = before

    def CUDAGraph(self) -> FakeGraph:
        return FakeGraph(self)


class FakeGraph:
    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self._pool = -1
        self._stream = ""

    def capture_begin(self, pool: int | None = None, capture_error_mode: str = "global") -> None:
        assert capture_error_mode == "thread_local"
        assert self._cuda.stream_now != "default", "graphs must be captured on a non-default stream"
        self._stream = self._cuda.stream_now
        self._pool = len(self._cuda.pools) if pool is None else pool
        users = self._cuda.pools.setdefault(self._pool, weakref.WeakSet())
        assert pool is None or len(users) > 0, "INTERNAL ASSERT FAILED: use_count > 0"
        users.add(self)
        self._cuda.calls.append("begin")

    def capture_end(self) -> None:
        assert self._cuda.stream_now == self._stream, "capture must end on the same stream it began on"
        self._cuda.calls.append("end")
        if self._cuda.cannot_end:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    def pool(self) -> int:
        return self._pool

    def replay(self) -> None:
        pass


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: "captures")
    monkeypatch.setattr(torch.cuda, "stream", fake.stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", fake.CUDAGraph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: fake.calls.append("wait"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: fake.calls.append("empty"))
    return fake


@pytest.fixture
def captures(cuda: FakeCuda) -> Captures:
    return Captures(torch.device("cuda", 0))


def test_graphs_share_one_pool_also_after_all_of_them_were_dropped(
    cuda: FakeCuda, captures: Captures
) -> None:
    replays = [captures.capture(lambda: None) for _ in range(3)]
    assert [len(graphs) for graphs in cuda.pools.values()] == [3]
    # As when the model's buffers have grown, or a worker ends and its device goes on.
    replays.clear()
    gc.collect()
    captures.capture(lambda: None)
    assert list(cuda.pools) == [0]


def test_steps_keep_their_memory_while_there_is_other_for_graphs(cuda: FakeCuda, captures: Captures) -> None:
    for _ in range(2):
        captures.capture(lambda: cuda.calls.append(f"work on {cuda.stream_now}"))
    assert cuda.calls == ["wait", "begin", "work on captures", "end"] * 2


@pytest.mark.parametrize("num_lacks", [1, 2])
def test_memory_that_is_not_in_use_is_given_back_where_a_graph_lacks_it(
    cuda: FakeCuda, captures: Captures, num_lacks: int
) -> None:
    lacks = [torch.OutOfMemoryError("CUDA out of memory")] * num_lacks

    def run() -> None:
        if lacks:
            raise lacks.pop()

    if num_lacks == 1:
        captures.capture(run)
    else:
        with pytest.raises(torch.OutOfMemoryError):
            captures.capture(run)
    assert cuda.calls == ["wait", "begin", "end", "empty", "begin", "end"]
    assert cuda.stream_now == "default"


def test_a_capture_that_cannot_be_ended_is_no_lack_of_memory(cuda: FakeCuda, captures: Captures) -> None:
    def run() -> None:
        cuda.cannot_end = True
        raise torch.OutOfMemoryError("CUDA out of memory")

    # torch's allocator still takes memory for the graph then.
    with pytest.raises(RuntimeError, match="previous error during capture"):
        captures.capture(run)
    assert cuda.calls[-1] == "end"
    assert cuda.stream_now == "default"
