"""An engine-core with the simulated executor and an api-frontend, which must outlive what is done to them."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from tests.system.processes import Process, Server, serve
from tests.system.soak.watch import MIB, Figures

ENGINE_FLAGS = (
    *("--executor", "simulated", "--max-model-len", "320", "--log-level", "warning", "--num-blocks", "400"),
    *("--max-num-seqs", "32", "--max-num-waiting", "64"),
)
FRONTEND_FLAGS = ("--log-level", "warning", "--max-connections-per-address", "1000")
PROBE = {"prompt": [70, 71, 72, 73], "max_tokens": 40, "temperature": 1, "seed": 11, "ignore_eos": True}
# A mutated call may be that which has an engine sleep.
ADMIN_KEY = "key-of-whoever-wakes-the-engine"
SETTLE_S = 60.0
ALLOWED_GROWTH_BYTES = 12 * MIB


class LiveServer:
    """The two processes, and what is known of them."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sst-"))
        keys = Path(folder, "admin-keys")
        keys.write_text(ADMIN_KEY)
        flags = (*FRONTEND_FLAGS, "--admin-key-file", str(keys))
        self.server: Server = self._stack.enter_context(serve(Path(folder), ENGINE_FLAGS, flags))
        self.port = int(self.server.url.rsplit(":", 1)[1])
        self._http = self._stack.enter_context(httpx.Client(base_url=self.server.url, timeout=60))
        self._expected = self._probe()
        self._read = dict.fromkeys(("engine", "frontend"), 0)
        self._begin_s = time.monotonic()
        # Seconds since the start, and the memory of engine and frontend then.
        self._memory: list[tuple[float, int, int]] = []

    def check(self) -> None:
        """After a case: both live, have logged no traceback, and answer a request as ever.

        Raises:
            AssertionError: names what is wrong, with the end of the log.
        """
        for name, process in self._processes().items():
            text = process.log.read_bytes()[self._read[name] :]
            self._read[name] += len(text)
            assert process.popen.poll() is None, f"{name} ended: {text[-3000:].decode(errors='replace')}"
            assert b"Traceback" not in text, text[text.index(b"Traceback") :][:3000].decode(errors="replace")
        assert self._http.get("/live").status_code == 200
        assert self._probe() == self._expected, "the answer of a request beside it has changed"
        sizes = [psutil.Process(process.pid).memory_info().rss for process in self._processes().values()]
        self._memory.append((time.monotonic() - self._begin_s, *sizes))

    def _processes(self) -> dict[str, Process]:
        return {"engine": self.server.engine, "frontend": self.server.frontend}

    def _probe(self) -> object:
        # The queue may be full of what a case has left; it empties.
        deadline = time.monotonic() + SETTLE_S
        while True:
            answer = self._http.post("/v1/completions", json=PROBE)
            if answer.status_code == 200:
                return answer.json()["choices"]
            assert answer.status_code in (429, 503), answer.text
            if answer.json()["error"]["code"] == "engine_asleep":
                self._http.post("/wake_up", headers={"Authorization": f"Bearer {ADMIN_KEY}"})
            assert time.monotonic() < deadline, f"still refused: {answer.text}"
            time.sleep(0.05)

    def growth(self) -> str:
        """What memory was after a third of the time and is now; raises if it is not flat."""
        if not self._memory:
            return ""
        last = self._memory[-1]
        first = next(sample for sample in self._memory if sample[0] >= last[0] / 3)
        told = ", ".join(
            f"{name} {before / MIB:.1f} to {now / MIB:.1f}"
            for name, before, now in zip(("engine", "frontend"), first[1:], last[1:], strict=True)
        )
        if last[0] > 60:
            grown = max(now - before for before, now in zip(first[1:], last[1:], strict=True))
            assert grown < ALLOWED_GROWTH_BYTES, f"memory grew, MiB: {told}"
        return f"MiB {told}"

    def wait_until_idle(self) -> None:
        """Nothing may run or wait any more, and all blocks must be free."""
        deadline = time.monotonic() + SETTLE_S
        while not Figures(self.server.url).is_idle:
            assert time.monotonic() < deadline, "something still runs or waits, or blocks are not free"
            time.sleep(0.1)

    def close(self) -> None:
        """End the processes."""
        self._stack.close()
