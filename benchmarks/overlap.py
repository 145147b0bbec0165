"""How much of its time does the worker wait for the engine while it decodes?

Usage: python -m benchmarks.overlap [--streams 1,8,32] [--tokens N] [--model DIR] [--json FILE]

Starts an engine-core with its worker, connects as a frontend without HTTP, opens the streams and lets all
decode. The worker's own clock says how long it waited for each step after it had answered the last one; the
figures are differences of the engine's counters between the first token of the last stream and the end of the
first. "rest" is what the worker spends between the steps beside waiting: sending, decoding the message.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import zmq

from splitserve.engine_core.ipc.codec import encode, engine_decoder, pack_int32, unpack_int64
from splitserve.engine_core.ipc.messages import (
    AddRequest,
    EngineMessage,
    EngineStats,
    FrontendMessage,
    Hello,
    Ping,
    Pong,
    Ready,
    StepOutputs,
)
from splitserve.engine_core.ipc.transport import connect_engine
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from splitserve.engine_core.process.version import software_version
from splitserve.engine_core.sequence_sampling import SequenceSampling

PROMPT_TOKENS = 32
LIMIT_S = 120.0


class Snapshot(NamedTuple):
    """The engine's counters at a moment of this process's clock."""

    at_s: float
    stats: EngineStats


class Client:
    """A frontend that counts tokens and looks at nothing else."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self._socket = connect_engine(context, address, b"b" + secrets.token_bytes(8))
        self._socket.setsockopt(zmq.RCVTIMEO, int(LIMIT_S * 1000))
        self._num_handles = 0
        self._last_pong_s = 0.0

    def send(self, message: FrontendMessage) -> None:
        """Send one message."""
        self._socket.send(encode(message))

    def receive(self) -> EngineMessage:
        """Wait for the next message of the engine."""
        return engine_decoder.decode(self._socket.recv())

    def wait_ready(self) -> Ready:
        """Say hello and wait until the engine serves."""
        self.send(Hello(PROTOCOL_VERSION, "overlap", software_version()))
        while not isinstance(message := self.receive(), Ready):
            pass
        return message

    def run(self, num_streams: int, num_tokens: int) -> tuple[Snapshot, Snapshot]:
        """Decode num_streams streams; return the counters when all had begun and when the first ended."""
        handles = range(self._num_handles, self._num_handles + num_streams)
        self._num_handles += num_streams
        for handle in handles:
            prompt = pack_int32([10 + (handle * 37 + i) % 1000 for i in range(PROMPT_TOKENS)])
            sampling = SequenceSampling(seed=handle, max_tokens=num_tokens, ignore_eos=True)
            self.send(AddRequest(handle, f"overlap-{handle}", prompt, sampling))
        silent, open_handles = set(handles), set(handles)
        begin = end = None
        while open_handles:
            match self.receive():
                case StepOutputs() as outputs:
                    if silent:
                        silent.difference_update(unpack_int64(outputs.handles).tolist())
                        if not silent:
                            self.send(Ping(0))
                    self._renew_lease()
                    if outputs.finished and len(open_handles) == num_streams:
                        self.send(Ping(1))
                    open_handles.difference_update(finished.handle for finished in outputs.finished)
                case Pong(nonce=0, stats=stats):
                    begin = Snapshot(time.perf_counter(), stats)
                case Pong(nonce=1, stats=stats):
                    end = Snapshot(time.perf_counter(), stats)
        while end is None:
            message = self.receive()
            if isinstance(message, Pong) and message.nonce == 1:
                end = Snapshot(time.perf_counter(), message.stats)
        assert begin is not None
        return begin, end

    def close(self) -> None:
        """Leave."""
        self._socket.close(linger=0)

    def _renew_lease(self) -> None:
        now_s = time.monotonic()
        if now_s - self._last_pong_s > 1.0:
            self._last_pong_s = now_s
            self.send(Ping(2))


def measure(client: Client, num_streams: int, num_tokens: int) -> dict[str, float]:
    """Return shares of wall time and microseconds per step."""
    begin, end = client.run(num_streams, num_tokens)
    wall_s = end.at_s - begin.at_s
    num_steps = end.stats.num_steps - begin.stats.num_steps
    compute_s = end.stats.worker_compute_s - begin.stats.worker_compute_s
    wait_s = end.stats.worker_wait_s - begin.stats.worker_wait_s
    return {
        "streams": num_streams,
        "steps": num_steps,
        "step us": wall_s / num_steps * 1e6,
        "compute us": compute_s / num_steps * 1e6,
        "wait us": wait_s / num_steps * 1e6,
        "rest us": (wall_s - compute_s - wait_s) / num_steps * 1e6,
        "wait %": 100 * wait_s / wall_s,
        "tokens/s": (end.stats.generation_tokens - begin.stats.generation_tokens) / wall_s,
    }


def main() -> int:
    """Start the engine, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=1000, help="of each stream")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", default="", help="checkpoint directory; the demo model when left out")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="overlap-") as folder:
        os.chmod(folder, 0o700)
        address = f"ipc://{folder}/engine.sock"
        command = [
            sys.executable,
            "-m",
            "splitserve.engine_core.cli",
            "--listen",
            address,
            "--log-level",
            "warning",
        ]
        process = subprocess.Popen([*command, *(["--model", args.model] if args.model else [])])
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            client = Client(context, address)
            client.wait_ready()
            client.run(1, 50)
            results = []
            for num_streams in [int(count) for count in args.streams.split(",")] * args.repeats:
                results.append(measure(client, num_streams, args.tokens))
                print_row(results[-1], header=len(results) == 1)
            client.close()
        finally:
            process.terminate()
            process.wait(LIMIT_S)
            context.term()
    if args.json:
        args.json.write_text(json.dumps({"load_average": os.getloadavg()[0], "results": results}, indent=2))
    return 0


def print_row(result: dict[str, float], *, header: bool) -> None:
    """Print one line, with the load average, since other processes take the worker's cores."""
    if header:
        print("  ".join(f"{name:>10}" for name in [*result, "load"]))
    values = [*result.values(), os.getloadavg()[0]]
    print("  ".join(f"{value:10.0f}" if value > 100 else f"{value:10.2f}" for value in values), flush=True)


if __name__ == "__main__":
    sys.exit(main())
