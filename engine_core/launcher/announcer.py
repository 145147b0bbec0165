"""What `splitserve serve` says of itself once it serves: the banner, and the file by which others find it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import time
from collections.abc import Callable, Sequence

import msgspec
import zmq

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.ipc.messages import Ready
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.launcher.options import LaunchOptions
from splitserve.engine_core.launcher.readiness import ProbeStage, ReadinessProbe
from splitserve.engine_core.launcher.rolling import RollingRestart
from splitserve.engine_core.process.server_record import RecordFile, ServerRecord

NEVER = float("inf")


class Announcer:
    """Waits until requests can be served and then says so; polled by the launcher's loop.

    Attributes:
        place: base URL, or "unix:PATH".

    Args:
        options: of the server.
        listener: the frontends' socket.
        address: of the engine.
        clock: of the launcher.
        file: by which others find the server, nothing written yet; closed by leave().
        say: tells the operator a line.
    """

    def __init__(
        self,
        options: LaunchOptions,
        listener: socket.socket,
        address: str,
        clock: Clock,
        file: RecordFile,
        say: Callable[[str], None],
    ) -> None:
        self._options = options
        self._listener = listener
        self._address = address
        self._clock = clock
        self._say = say
        self._begin_s = clock.monotonic()
        self._probe: ReadinessProbe | None = None
        self._file = file
        self._has_announced = False
        self.place, self._port = self._find_place()
        self._record = ServerRecord(
            pid=os.getpid(), started_s=time.time(), place=self.place, port=self._port, engine=address
        )

    def begin(self) -> None:
        """Begin to ask engine and frontends."""
        listener = self._listener if self._options.scheme == "http" else None
        num_frontends = self._options.num_frontends
        self._probe = ReadinessProbe(
            self._address, num_frontends, listener, self._clock, self._on_engine_ready
        )

    @property
    def sources(self) -> Sequence[zmq.Socket | int]:
        """What to poll for input."""
        return self._probe.sources if self._probe is not None else ()

    def next_due_s(self) -> float:
        """Return when to call run() next, at the latest."""
        return self._probe.next_due_s() if self._probe is not None else NEVER

    def run(self) -> None:
        """Do what is due."""
        if self._probe is None:
            return
        self._probe.on_readable()
        self._probe.on_time()
        if self._probe.stage is ProbeStage.DONE and self._probe.engine is not None:
            self._announce(self._probe.engine)
            self.end()

    def end(self) -> None:
        """Stop asking."""
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    def tell_rolls(self, rolling: RollingRestart) -> None:
        """Keep the file up to date."""
        record = msgspec.structs.replace(
            self._record,
            num_rolls_begun=rolling.num_begun,
            num_rolls_ended=rolling.num_ended,
            failure=rolling.failure,
        )
        if record != self._record and self._has_announced:
            self._file.write(record)
        self._record = record

    def leave(self) -> None:
        """Remove the file."""
        self.end()
        self._file.close()

    def _on_engine_ready(self, engine: Ready) -> None:
        model = engine.model
        weights = "" if model.quantization == "none" else f" with {model.quantization} weights"
        self._say(
            f"engine ready: {model.architecture}, {model.num_params / 1e6:.1f}M parameters, "
            f"{model.dtype}{weights}, {model.max_model_len} tokens of context"
        )

    def _announce(self, engine: Ready) -> None:
        took_s = self._clock.monotonic() - self._begin_s
        options = self._options
        self._has_announced = True
        self._file.write(self._record)
        text = _banner(
            engine, self.place, options.uds, self._address, took_s, has_api_key=options.has_api_key
        )
        with contextlib.suppress(OSError):
            print(text, flush=True)

    def _find_place(self) -> tuple[str, int]:
        if self._options.uds:
            return f"unix:{self._options.uds}", 0
        host, port = self._listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{self._options.scheme}://{shown}:{port}", port


def _banner(engine: Ready, place: str, uds: str, address: str, took_s: float, *, has_api_key: bool) -> str:
    """Return the text, several lines.

    Args:
        engine: the engine's description of itself.
        place: base URL, or "unix:PATH".
        uds: path of the Unix socket, "" for TCP.
        address: of the engine, for more frontends.
        took_s: seconds the start took.
        has_api_key: clients must send a key.
    """
    url = "http://localhost" if uds else _reachable(place)
    name = engine.served_model_names[0]
    lines = [
        f"SplitServe is ready after {took_s:.1f} s",
        f"  API     {place if uds else url}{'' if uds else '/v1'}",
        f"  model   {', '.join(engine.served_model_names)}",
        *([] if uds else [f"  page    {url}/", f"  docs    {url}/docs"]),
        f"  engine  {address}  (one more frontend: api-frontend --engine {address} --port PORT)",
        f"  try     {_curl(url, uds, name, has_api_key, engine.model)}",
    ]
    return "\n".join(["", *lines, ""])


def _reachable(place: str) -> str:
    """Return an address that a client on this machine can use."""
    return place.replace("://0.0.0.0:", "://127.0.0.1:").replace("://[::]:", "://[::1]:")


def _curl(url: str, uds: str, name: str, has_api_key: bool, model: ModelInfo) -> str:
    body: dict[str, object]
    if model.embedding_size:
        path, body = "v1/embeddings", {"model": name, "input": "Hello!"}
    elif len(model.labels) == 1:
        path, body = "v1/score", {"model": name, "text_1": "Hello!", "text_2": "Good day!"}
    elif model.labels:
        path, body = "classify", {"model": name, "input": "Hello!"}
    else:
        messages = [{"role": "user", "content": "Hello!"}]
        path, body = "v1/chat/completions", {"model": name, "messages": messages}
    words = ["curl", *(["--unix-socket", uds] if uds else []), f"{url}/{path}"]
    words += ["-H", "Content-Type: application/json"]
    text = shlex.join(words)
    if has_api_key:
        text += ' -H "Authorization: Bearer $API_KEY"'
    return f"{text} -d {shlex.quote(json.dumps(body))}"
