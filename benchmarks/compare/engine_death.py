"""What do clients see when the process that computes is killed under their streams? Asks any engine alike.

    python -m benchmarks.compare.engine_death DIR [--engines vllm,splitserve] [--model small] [--streams 24]
        [--victim engine] [--runs 5]

DIR is that of `benchmarks.compare setup`. Each run starts the server, streams greedy completions undisturbed,
streams them again, kills the victim once a quarter of the text is there, and asks until an answer is good.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.compare.engines import ENGINES
from benchmarks.compare.engines.base import Engine
from benchmarks.compare.processes import EngineError
from benchmarks.compare.server import Server

NUM_NEW = 200
BACK_LIMIT_S = 120.0
# Words in the command line of the process to kill, by victim and by whether the engine is ours.
VICTIMS = {
    "engine": {True: "splitserve.engine_core.cli", False: "EngineCore"},
    "worker": {True: "splitserve.worker.cli", False: "EngineCore"},
}


@dataclass(slots=True)
class Stream:
    """One client's stream.

    Attributes:
        times_s: when each event with text came (time.perf_counter).
        whole: it ended with a finish reason and [DONE].
        error: what the client saw instead.
    """

    text: str = ""
    times_s: list[float] = field(default_factory=list)
    whole: bool = False
    error: str = ""


def read_stream(url: str, body: dict[str, object], into: Stream, on_event: Callable[[], None]) -> None:
    """Stream one completion; whatever goes wrong is the stream's error."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=BACK_LIMIT_S)
    finished = False
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            into.error = f"status {answer.status}"
            return
        for line in answer:
            if line.startswith(b"data: [DONE]"):
                into.whole = finished
                return
            if not line.startswith(b"data: "):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                into.error = "error event"
                return
            choice = event["choices"][0] if event.get("choices") else {}
            finished = finished or bool(choice.get("finish_reason"))
            if choice.get("text"):
                into.text += choice["text"]
                into.times_s.append(time.perf_counter())
                on_event()
        into.error = "ended early"
    except (OSError, http.client.HTTPException, ValueError) as error:
        into.error = type(error).__name__
    finally:
        connection.close()


def run_streams(
    url: str, bodies: Sequence[dict[str, object]], kill_after: int, kill: Callable[[], None]
) -> list[Stream]:
    """Run all streams side by side; `kill` is called at the kill_after-th event of all."""
    streams = [Stream() for _ in bodies]
    lock = threading.Lock()
    num_events = 0

    def on_event() -> None:
        nonlocal num_events
        with lock:
            num_events += 1
            strike = num_events == kill_after
        if strike:
            kill()

    threads = [
        threading.Thread(target=read_stream, args=(url, body, each, on_event))
        for body, each in zip(bodies, streams, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return streams


def find_victim(root_pid: int, words: str) -> int:
    """Return the descendant of a process that has these words in its command line or name.

    Raises:
        EngineError: there is none.
    """
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    for pid in sorted(parents):
        ancestor = pid
        while ancestor in parents and ancestor != root_pid:
            ancestor = parents[ancestor]
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if ancestor == root_pid and words in command:
            return pid
    raise EngineError(f"no process of the server has {words!r} in its command line")


def one_run(engine: Engine, root: Path, model: Path, num_streams: int, victim: str) -> dict[str, float]:
    """Start a server, kill its victim under streams; return what came of them."""
    server = Server(engine, root, model, root / "logs" / f"death-{engine.name}.log")
    try:
        fields = {**engine.request_fields(model, NUM_NEW), "temperature": 0, "stream": True}
        bodies = [
            {
                **fields,
                "max_tokens": NUM_NEW,
                "prompt": f"Story number {i} begins in a town by the sea, where",
            }
            for i in range(num_streams)
        ]
        reference = run_streams(server.url, bodies, 0, lambda: None)
        if not all(each.whole for each in reference):
            raise EngineError(f"undisturbed streams failed: {reference[0].error}")
        struck_s = 0.0

        def kill() -> None:
            nonlocal struck_s
            os.kill(find_victim(server.process.pid, VICTIMS[victim][engine.ours]), signal.SIGKILL)
            struck_s = time.perf_counter()

        num_events = sum(len(each.times_s) for each in reference)
        streams = run_streams(server.url, bodies, num_events // 4, kill)
        back_s = time_until_back(server.url, {**bodies[0], "max_tokens": 4}, struck_s)
    finally:
        server.process.close()
    identical = [a.whole and a.text == b.text for a, b in zip(streams, reference, strict=True)]
    gaps = [longest_gap(each, struck_s) for each in streams if each.whole]
    return {
        "streams": num_streams,
        "whole": sum(each.whole for each in streams),
        "identical": sum(identical),
        "gap_p50_s": statistics.median(gaps) if gaps else float("nan"),
        "gap_max_s": max(gaps, default=float("nan")),
        "back_after_s": back_s,
    }


def longest_gap(stream: Stream, struck_s: float) -> float:
    """Return the pause between two events around the kill, 0 if the stream had ended before it."""
    later = [time_s for time_s in stream.times_s if time_s > struck_s]
    earlier = [time_s for time_s in stream.times_s if time_s <= struck_s]
    return later[0] - earlier[-1] if later and earlier else 0.0


def time_until_back(url: str, body: dict[str, object], struck_s: float) -> float:
    """Return the seconds from the kill to the end of the first good answer; infinity if none comes."""
    while time.perf_counter() - struck_s < BACK_LIMIT_S:
        probe = Stream()
        read_stream(url, body, probe, lambda: None)
        if probe.whole:
            return time.perf_counter() - struck_s
        time.sleep(0.05)
    return float("inf")


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dir", type=Path)
    parser.add_argument("--engines", default="vllm,splitserve")
    parser.add_argument("--model", default="small")
    parser.add_argument("--streams", type=int, default=24)
    parser.add_argument("--victim", choices=VICTIMS, default="engine")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    root = options.dir.resolve()
    rows = []
    for _ in range(options.runs):
        for name in options.engines.split(","):
            engine = ENGINES[name]
            row = one_run(engine, root, root / "models" / options.model, options.streams, options.victim)
            rows.append({"engine": name, "victim": options.victim, **row})
            print(json.dumps(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
