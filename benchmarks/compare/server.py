"""How is an engine's server started, watched and put under load?"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from benchmarks.compare.engines.base import Engine
from benchmarks.compare.held import environment_of
from benchmarks.compare.processes import EngineError, EngineProcess, cpu_s, pss_bytes
from benchmarks.compare.results import Start
from benchmarks.compare.scenarios import Online
from benchmarks.compare.shapes import SHAPES
from benchmarks.compare.stream_client import Completion, StreamError, stream
from benchmarks.startup import free_port

START_S = 300.0
IDLE_S = 3.0
# Between two looks at a server that is starting; a look costs it a request.
POLL_S = 0.02
# A proxy that the environment names cannot reach this machine's own servers.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Server:
    """A served model on a free port of loopback; ready when made.

    Args:
        engine: that serves it.
        root: folder of the comparison.
        model: folder of the checkpoint.
        log: file for the server's output.
        isa: what it is held to, "" for nothing.
        arguments: behind those of the engine's command.

    Raises:
        EngineError: it ended, or was not ready in time.
    """

    def __init__(
        self,
        engine: Engine,
        root: Path,
        model: Path,
        log: Path,
        isa: str = "",
        arguments: Sequence[str] = (),
    ) -> None:
        self._engine = engine
        self._model = model
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        start = time.perf_counter()
        command = [*engine.server_command(root, model, port), *arguments]
        environment = environment_of(engine, root, isa)
        self.process = EngineProcess(command, environment, log, pausable=engine.pausable)
        try:
            while not self._healthy():
                self.process.check_alive()
                if time.perf_counter() - start > START_S:
                    raise EngineError(f"not ready within {START_S:.0f} s; see {log}")
                time.sleep(POLL_S)
        except BaseException:
            # Whoever ends this program ends what it was starting, too.
            self.process.close()
            raise
        self._ready_s = time.perf_counter() - start

    def describe_start(self) -> Start:
        """Return what starting took; call it before any request."""
        engine, model = self._engine, self._model
        pss = pss_bytes(self.process.pid)
        kv = engine.kv_bytes(SHAPES[model.name])
        before_s, since = cpu_s(self.process.pid), time.perf_counter()
        time.sleep(IDLE_S)
        idle_cores = (cpu_s(self.process.pid) - before_s) / (time.perf_counter() - since)
        weights = engine.weight_bytes(model)
        return Start(engine.name, model.name, self._ready_s, pss, pss - weights - kv, idle_cores)

    def run(self, scenario: Online, prompts: Sequence[str]) -> tuple[float, dict[str, float]]:
        """Return new tokens per second over a prompt per request, and the details of a turn.

        Raises:
            EngineError: the server has ended.
            StreamError: it refused a request, or made another number of tokens than asked for.
            TimeoutError: it took minutes.
        """
        import uvloop

        self.process.check_alive()
        fields = {
            **self._engine.request_fields(self._model, scenario.num_new),
            "max_tokens": scenario.num_new,
        }
        bodies = [{**fields, "prompt": prompt, "temperature": 0, "stream": True} for prompt in prompts]
        server_s, client_s = cpu_s(self.process.pid), time.thread_time()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            finished = runner.run(stream(self.url, bodies, scenario.concurrency))
        client_s, server_s = time.thread_time() - client_s, cpu_s(self.process.pid) - server_s
        counts = {completion.num_tokens for completion in finished}
        if counts != {scenario.num_new}:
            raise StreamError(f"asked for {scenario.num_new} tokens, got {sorted(counts)}")
        return summarise(finished, client_s, server_s)

    def _healthy(self) -> bool:
        try:
            with _DIRECT.open(self.url + self._engine.health_path, timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def summarise(
    finished: Sequence[Completion], client_s: float, server_s: float
) -> tuple[float, dict[str, float]]:
    """Return new tokens per second of all streams together, and the details of a turn.

    Args:
        finished: the streams, at least one.
        client_s: CPU seconds of this program.
        server_s: CPU seconds of the server's processes.
    """
    seconds = max(stream.ended_s for stream in finished) - min(stream.sent_s for stream in finished)
    gaps = [b - a for stream in finished for a, b in itertools.pairwise(stream.text_times_s)]
    details = {
        "seconds": seconds,
        "tokens_per_request": statistics.mean(stream.num_tokens for stream in finished),
        "prompt_tokens_per_request": statistics.mean(stream.num_prompt_tokens for stream in finished),
        "ttft_p50_ms": 1e3 * statistics.median(s.text_times_s[0] - s.sent_s for s in finished),
        "itl_p50_ms": 1e3 * percentile(gaps, 0.5),
        "itl_p99_ms": 1e3 * percentile(gaps, 0.99),
        "client_cores": client_s / seconds,
        "server_cores": server_s / seconds,
    }
    return sum(stream.num_tokens for stream in finished) / seconds, details


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that so large a share of all does not exceed; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
