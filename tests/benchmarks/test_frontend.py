"""The parts that need no server: what /proc and /metrics say, the window's figures, and the readers."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.registry import Collector

from benchmarks.frontend import (
    TICKS_PER_S,
    Figures,
    Sample,
    count_tokens,
    cpu_s,
    pss_kb,
    step_ms,
    summarise,
)
from benchmarks.stream_readers import Counts, StreamReaders, post
from splitserve.frontend.metrics.histogram import TOKEN_TIME_BUCKETS
from splitserve.frontend.metrics.process import FrontendMetrics


def test_cpu_times_are_found_behind_any_process_name() -> None:
    fields = " ".join(str(i) for i in range(4, 53))
    assert cpu_s(f"12 (a) b (c) S {fields}") == (14 / TICKS_PER_S, 15 / TICKS_PER_S)
    assert min(cpu_s(Path("/proc/self/stat").read_text())) >= 0


def test_the_proportional_set_size_is_read_and_positive() -> None:
    assert pss_kb("x\nRss:  9 kB\nPss:   1234 kB\nPss_Dirty:  7 kB\n") == 1234
    assert pss_kb(Path(f"/proc/{os.getpid()}/smaps_rollup").read_text()) > 1000


def test_tokens_are_counted_over_all_models() -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    metrics = FrontendMetrics("f")
    assert TOKEN_TIME_BUCKETS[0] < 0.01
    metrics.model("a").inter_token_latency.observe(0.01, 40)
    metrics.model("b").inter_token_latency.observe(5.0, 2)

    class Collected(Collector):
        def collect(self) -> Iterable[Metric]:
            return metrics.collect(1, 0)

    registry = CollectorRegistry()
    registry.register(Collected())
    assert count_tokens(generate_latest(registry).decode()) == 42


def test_figures_are_differences_per_token_and_per_stream() -> None:
    begin = Sample(10.0, 1.0, 0.5, 2.0, 100, 95)
    end = Sample(12.0, 1.003, 0.501, 2.0005, 1100, 595)
    found = summarise(begin, end, idle_kb=50_000, open_kb=56_400, num_streams=64)
    assert found == pytest.approx(Figures(500, 4, 3, 1, 0.002, 0.5, 0.5, 100))


def test_steps_are_as_long_as_the_rate_asks_for_but_not_too_short() -> None:
    assert step_ms(1000, 10_000) == 100
    assert step_ms(1, 10_000) == 5
    assert step_ms(1, 10_000, min_step_ms=0.05) == 0.1


class Server:
    """Answers each connection with the next of some scripts and closes it when the script ends with b""."""

    def __init__(self, *scripts: list[bytes]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._thread = threading.Thread(target=self._run, args=(scripts,))
        self._thread.start()
        self.open: list[socket.socket] = []

    def _run(self, scripts: tuple[list[bytes], ...]) -> None:
        for script in scripts:
            client, _ = self._listener.accept()
            client.recv(65536)
            for data in script:
                client.sendall(data) if data else client.close()
            self.open.append(client)

    def close(self) -> None:
        self._thread.join()
        for client in (*self.open, self._listener):
            client.close()


def read(*scripts: list[bytes], until: Counts) -> bool:
    """Read the scripts until the counts are reached; whether all streams were seen to flow."""
    server = Server(*scripts)
    readers = StreamReaders(server.address, post("/", b"{}"), len(scripts))
    try:
        while (readers.counts.events, readers.counts.ended) != (until.events, until.ended):
            readers.turn()
        return readers.flowing
    finally:
        readers.close()
        server.close()


OK = b"HTTP/1.1 200 OK\r\n\r\n"


def test_readers_count_events_and_ends_and_know_when_all_flow() -> None:
    assert not read([OK], [OK + b'data: {"a":1}\n\ndata: {"b":1}\n\n'], until=Counts(events=2))
    assert read([OK + b"data: {1}\n\n"], [OK + b"data: {1}\n\ndata: [DONE]\n\n"], until=Counts(2, ended=1))


@pytest.mark.parametrize(
    "script", [[b"HTTP/1.1 429 Too Many Requests\r\n\r\n{}"], [OK + b"data: [DONE]\n\n"], [b""]]
)
def test_a_stream_that_is_refused_or_ends_early_is_an_error(script: list[bytes]) -> None:
    with pytest.raises(RuntimeError, match=r"refused|ended before"):
        read(script, until=Counts(events=1))
