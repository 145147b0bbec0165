"""What is printed once the server is ready: its address, its model, and one command to try."""

from __future__ import annotations

import json
import shlex

from splitserve.engine_core.ipc.messages import Ready


def banner(engine: Ready, place: str, uds: str, address: str, took_s: float, *, has_api_key: bool) -> str:
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
        *([] if uds else [f"  docs    {url}/docs"]),
        f"  engine  {address}  (one more frontend: api-frontend --engine {address} --port PORT)",
        f"  try     {_curl(url, uds, name, has_api_key)}",
    ]
    return "\n".join(["", *lines, ""])


def _reachable(place: str) -> str:
    """Return an address that a client on this machine can use."""
    return place.replace("://0.0.0.0:", "://127.0.0.1:").replace("://[::]:", "://[::1]:")


def _curl(url: str, uds: str, model: str, has_api_key: bool) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}]}
    words = ["curl", *(["--unix-socket", uds] if uds else []), f"{url}/v1/chat/completions"]
    words += ["-H", "Content-Type: application/json"]
    text = shlex.join(words)
    if has_api_key:
        text += ' -H "Authorization: Bearer $API_KEY"'
    return f"{text} -d {shlex.quote(json.dumps(body))}"
