"""How long from `splitserve serve` to the first streamed token? `python -m benchmarks.startup`

Starts the command anew for each run, asks for a chat answer over HTTP as soon as it is ready, and prints the
seconds until it was ready, until the first token, and from SIGTERM until everything had ended.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import statistics
import subprocess
import sys
import time

import httpx

LIMIT_S = 120.0


def free_port() -> int:
    """Return a TCP port on loopback that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_ready(client: httpx.Client, started: float) -> float:
    """Return the seconds since `started` at which /ready first answers 200."""
    while time.monotonic() - started < LIMIT_S:
        try:
            if client.get("/ready").status_code == 200:
                return time.monotonic() - started
        except httpx.TransportError:
            pass
        time.sleep(0.01)
    raise TimeoutError(f"not ready after {LIMIT_S} s")


def first_token(client: httpx.Client, started: float) -> float:
    """Return the seconds since `started` at which the first content of a streamed answer arrives."""
    body = {
        "model": client.get("/v1/models").json()["data"][0]["id"],
        "messages": [{"role": "user", "content": "Hello!"}],
        "stream": True,
    }
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                return time.monotonic() - started
    raise RuntimeError("the stream ended without a token")


def one_run(model: list[str]) -> dict[str, float]:
    """Start, ask, stop; returns seconds by phase."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "splitserve.engine_core.launcher.cli",
        "serve",
        *model,
        "--port",
        str(port),
    ]
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S, trust_env=False) as client:
            ready_s = wait_ready(client, started)
            first_token_s = first_token(client, started)
    finally:
        stopping = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)
    return {"ready_s": ready_s, "first_token_s": first_token_s, "stop_s": time.monotonic() - stopping}


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="*", help="checkpoint directory; the demo model when left out")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", default="", help="file for the figures")
    options = parser.parse_args()
    runs = [one_run(options.model[:1]) for _ in range(options.runs)]
    print(f"{'phase':<16}{'min s':>8}{'median s':>10}{'max s':>8}")
    for name in runs[0]:
        values = [run[name] for run in runs]
        print(f"{name:<16}{min(values):>8.2f}{statistics.median(values):>10.2f}{max(values):>8.2f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(runs, file, indent=1)


if __name__ == "__main__":
    main()
