"""What does a streamed token cost one api-frontend, and how much memory an open stream?

Usage: python -m benchmarks.frontend [--streams 1,64,1000,10000] [--rate N] [--min-step-ms N]
                                     [--trees DIR,DIR] [--json FILE]

Starts an engine-core with the simulated executor, one api-frontend and a process of readers that count bytes;
opens the streams, and compares CPU clocks (utime + stime) and the frontend's count of tokens at both ends of
a window in which no stream begins or ends. Steps last as long as the offered rate asks for, so a frontend
that keeps up gets one token per stream and step; the readers are never slow. Memory is the frontend's PSS
with all streams open less that of the same process before, after a warm-up. With --trees the frontend's code
is taken from several source trees in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx

from benchmarks.startup import free_port
from splitserve.engine_core.checkpoint.source import resolve_model

LIMIT_S = 120.0
MIN_STEP_MS = 5.0
CONTEXT_TOKENS = 8192
WARM_UP_STREAMS = 16
SETTLE_S = 2.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
BODIES: dict[str, tuple[str, dict[str, object]]] = {
    "completions": ("/v1/completions", {"prompt": [65, 66, 67, 68, 69, 70, 71, 72]}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
}


class Setting(NamedTuple):
    """One turn.

    Attributes:
        tree: source tree whose frontend is measured.
        endpoint: a key of BODIES.
        rate: tokens per second that the engine offers, over all streams.
        min_step_ms: shortest step of the engine, whatever the rate.
    """

    tree: Path
    endpoint: str
    num_streams: int
    rate: float
    seconds: float
    min_step_ms: float


class Sample(NamedTuple):
    """Clocks and counters at one end of the window; CPU times in seconds."""

    at_s: float
    frontend_user_s: float
    frontend_system_s: float
    engine_cpu_s: float
    tokens: int
    events: int


class Figures(NamedTuple):
    """What a turn found; `us` are microseconds of CPU time.

    Attributes:
        frontend_busy: share of one core; near 1 it is saturated, and makes one event of several tokens.
        writes_per_token: events that arrived per token, each of which is one write to a socket.
    """

    tokens_per_s: float
    frontend_us_per_token: float
    frontend_user_us: float
    frontend_system_us: float
    frontend_busy: float
    engine_us_per_token: float
    writes_per_token: float
    kb_per_stream: float


def cpu_s(stat: str) -> tuple[float, float]:
    """Return user and system time of a process from the text of its /proc/PID/stat."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) / TICKS_PER_S, int(fields[12]) / TICKS_PER_S


def pss_kb(smaps_rollup: str) -> int:
    """Return the proportional set size in KB from the text of /proc/PID/smaps_rollup."""
    found = re.search(r"^Pss:\s+(\d+) kB", smaps_rollup, re.MULTILINE)
    assert found is not None, "the kernel gives it since 4.14"
    return int(found[1])


def count_tokens(exposition: str) -> int:
    """Return the tokens after each stream's first that a frontend has seen, from the text of its /metrics."""
    pattern = r"^splitserve:inter_token_latency_seconds_count\{.*\} ([0-9.e+]+)$"
    return sum(int(float(value)) for value in re.findall(pattern, exposition, re.MULTILINE))


def summarise(begin: Sample, end: Sample, idle_kb: int, open_kb: int, num_streams: int) -> Figures:
    """Compare the two ends of a window."""
    tokens = end.tokens - begin.tokens
    user_us = (end.frontend_user_s - begin.frontend_user_s) * 1e6 / tokens
    system_us = (end.frontend_system_s - begin.frontend_system_s) * 1e6 / tokens
    tokens_per_s = tokens / (end.at_s - begin.at_s)
    return Figures(
        tokens_per_s=tokens_per_s,
        frontend_us_per_token=user_us + system_us,
        frontend_user_us=user_us,
        frontend_system_us=system_us,
        frontend_busy=(user_us + system_us) / 1e6 * tokens_per_s,
        engine_us_per_token=(end.engine_cpu_s - begin.engine_cpu_s) * 1e6 / tokens,
        writes_per_token=(end.events - begin.events) / tokens,
        kb_per_stream=(open_kb - idle_kb) / num_streams,
    )


def step_ms(num_streams: int, rate: float, min_step_ms: float = MIN_STEP_MS) -> float:
    """Return the step time at which num_streams streams get `rate` tokens per second together."""
    return max(min_step_ms, 1000 * num_streams / rate)


def write_model(folder: Path) -> None:
    """Give the demo model's tokenizer a longer context; a simulation needs no weights."""
    demo = resolve_model("")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((demo / name).read_bytes())
    config = json.loads((demo / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT_TOKENS}))


@contextlib.contextmanager
def started(command: list[str], cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a Python module with pipes and end it with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
        process.kill()
        process.communicate()


def engine_command(folder: Path, setting: Setting) -> list[str]:
    """Return the engine-core's command line."""
    num_streams = setting.num_streams
    flags = {
        "--listen": f"ipc://{folder}/engine.sock",
        "--model": str(folder),
        "--executor": "simulated",
        "--simulated-step-ms": str(step_ms(num_streams, setting.rate, setting.min_step_ms)),
        "--max-num-seqs": str(max(num_streams, WARM_UP_STREAMS)),
        "--max-num-waiting": str(num_streams + WARM_UP_STREAMS),
        "--max-num-batched-tokens": str(num_streams + 2048),
        "--log-wait": "0",
        # Long steps are what was asked for here, and no reason to take prompts in one by one.
        "--target-itl-ms": "0",
        "--num-blocks": str(num_streams * CONTEXT_TOKENS // 16 + 4096),
        "--log-level": "warning",
    }
    return ["splitserve.engine_core.cli", *(word for flag in flags.items() for word in flag)]


def frontend_command(folder: Path, port: int, num_streams: int) -> list[str]:
    """Return the api-frontend's command line."""
    command = ["splitserve.frontend.cli", "--engine", f"ipc://{folder}/engine.sock", "--port", str(port)]
    command += ["--max-open-requests", str(num_streams + WARM_UP_STREAMS)]
    return [*command, "--log-level", "warning"]


def wait_ready(http: httpx.Client) -> None:
    """Return when the frontend answers that an engine is ready."""
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        with contextlib.suppress(httpx.TransportError):
            if http.get("/ready").status_code == 200:
                return
        time.sleep(0.1)
    raise TimeoutError("the server is not ready")


class Turn:
    """The processes of one turn."""

    def __init__(self, setting: Setting, engine_pid: int, frontend_pid: int, http: httpx.Client) -> None:
        self._setting = setting
        self._engine_pid = engine_pid
        self._frontend_pid = frontend_pid
        self._http = http

    def run(self, port: int) -> Figures:
        """Warm up, open the streams and measure."""
        path, body = BODIES[self._setting.endpoint]
        warm_up = body | {"n": WARM_UP_STREAMS, "max_tokens": 2, "stream": True}
        self._http.post(path, json=warm_up).raise_for_status()
        idle_kb = self._pss_kb()
        num_streams = self._setting.num_streams
        command = ["benchmarks.stream_readers", "127.0.0.1", str(port), str(num_streams), path]
        with started(command) as readers:
            asked = body | {"max_tokens": CONTEXT_TOKENS - 64, "stream": True, "ignore_eos": True}
            if "".join(ask(readers, json.dumps(asked))) != "flowing\n":
                raise RuntimeError("the streams do not flow")
            time.sleep(SETTLE_S)
            begin = self._sample(readers)
            time.sleep(self._setting.seconds)
            end = self._sample(readers)
            return summarise(begin, end, idle_kb, self._pss_kb(), num_streams)

    def _sample(self, readers: subprocess.Popen[str]) -> Sample:
        tokens = count_tokens(self._http.get("/metrics").text)
        user_s, system_s = cpu_s(Path(f"/proc/{self._frontend_pid}/stat").read_text())
        engine_cpu_s = sum(cpu_s(Path(f"/proc/{self._engine_pid}/stat").read_text()))
        at_s = time.monotonic()
        counts = json.loads(ask(readers, "counts"))
        if counts["ended"]:
            raise RuntimeError(f"{counts['ended']} streams have ended too early")
        return Sample(at_s, user_s, system_s, engine_cpu_s, tokens, counts["events"])

    def _pss_kb(self) -> int:
        return pss_kb(Path(f"/proc/{self._frontend_pid}/smaps_rollup").read_text())


def ask(readers: subprocess.Popen[str], line: str) -> str:
    """Write a line to the readers and return their answer."""
    assert readers.stdin is not None
    assert readers.stdout is not None
    readers.stdin.write(line + "\n")
    readers.stdin.flush()
    return readers.stdout.readline()


def measure(setting: Setting) -> Figures:
    """Start fresh processes and run one turn."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="ssb-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        write_model(folder)
        engine = stack.enter_context(started(engine_command(folder, setting)))
        command = frontend_command(folder, port, setting.num_streams)
        frontend = stack.enter_context(started(command, setting.tree))
        http = stack.enter_context(
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S, trust_env=False)
        )
        wait_ready(http)
        return Turn(setting, engine.pid, frontend.pid, http).run(port)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", default="1,64,1000,10000")
    parser.add_argument("--endpoints", default="completions,chat")
    parser.add_argument("--rate", type=float, default=10000, help="tokens per second over all streams")
    parser.add_argument("--min-step-ms", type=float, default=MIN_STEP_MS, help="shortest step of the engine")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of the window")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--trees", default=str(Path(__file__).parent.parent), help="source trees, by commas")
    parser.add_argument("--json", type=Path, help="file for the figures")
    return parser.parse_args()


def settings(options: argparse.Namespace) -> Iterator[Setting]:
    """Yield the turns; trees change fastest, so that they meet the same neighbours on the machine."""
    for _ in range(options.rounds):
        for endpoint in options.endpoints.split(","):
            for num_streams in map(int, options.streams.split(",")):
                for tree in options.trees.split(","):
                    yield Setting(
                        Path(tree), endpoint, num_streams, options.rate, options.seconds, options.min_step_ms
                    )


def main() -> int:
    """Run all turns and print a line of each."""
    options = parse_options()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(f"{'tree':<12} {'endpoint':<12} {'streams':>7} " + " ".join(f"{n:>21}" for n in Figures._fields))
    rows = []
    for setting in settings(options):
        figures = measure(setting)
        cells = " ".join(f"{value:21.2f}" for value in figures)
        name = setting.tree.resolve().name[:12]
        print(f"{name:<12} {setting.endpoint:<12} {setting.num_streams:>7} {cells}", flush=True)
        rows.append(
            {"tree": name, "load": os.getloadavg()[0], **setting._asdict(), "figures": figures._asdict()}
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1, default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main())
