"""What does a JSON schema cost a batch? Asks any engine alike, over HTTP.

    python -m benchmarks.compare.structured DIR [--engines vllm,splitserve] [--model small] [--streams 32]
        [--tokens 96] [--rounds 3]

DIR is that of `benchmarks.compare setup`. Engines take turns, each in a server of its own; within one, so do
the kinds: no schema, one schema for all, a schema of its own for each request that the server has not seen.
All answers have the same number of tokens. Prints output tokens per second and the ratio to no schema.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.compare.engines import ENGINES
from benchmarks.compare.processes import EngineError
from benchmarks.compare.server import Server
from benchmarks.record_schema import list_of_records

# More than fit into an answer.
MIN_RECORDS = 100
KINDS = ("none", "shared", "different")
ANSWER_LIMIT_S = 600.0
# A proxy that the environment names cannot reach this machine's own servers.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(url: str, body: dict[str, object]) -> dict[str, Any]:
    """Return the answer to a completion request.

    Raises:
        EngineError: the engine refuses the request.
    """
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with _DIRECT.open(request, timeout=ANSWER_LIMIT_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        raise EngineError(f"status {error.code}: {error.read()[:500]!r}") from None


def measure(
    server: Server, fields: dict[str, object], kind: str, streams: int, names: Iterator[str]
) -> float:
    """Return output tokens per second of so many answers at once."""
    bodies = []
    for i in range(streams):
        body = {**fields, "prompt": f"List {i} of records as JSON:", "seed": i}
        if kind != "none":
            schema = list_of_records("shared" if kind == "shared" else next(names), MIN_RECORDS)
            form = {"type": "json_schema", "json_schema": {"name": "records", "schema": schema}}
            body["response_format"] = form
        bodies.append(body)
    with ThreadPoolExecutor(streams) as threads:
        begun = time.perf_counter()
        answers = list(threads.map(lambda body: ask(server.url, body), bodies))
        seconds = time.perf_counter() - begun
        return sum(answer["usage"]["completion_tokens"] for answer in answers) / seconds


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dir", type=Path)
    parser.add_argument("--engines", default="vllm,splitserve")
    parser.add_argument("--model", default="small")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    root = options.dir.resolve()
    model = root / "models" / options.model
    names = (f"n{i}" for i in itertools.count())
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for turn, engine_name in itertools.product(range(options.rounds), options.engines.split(",")):
        engine = ENGINES[engine_name]
        server = Server(engine, root, model, root / "logs" / f"structured-{engine.name}.log")
        try:
            asked = engine.request_fields(model, options.tokens)
            fields = {
                **{name: value for name, value in asked.items() if name != "stream_options"},
                **{"max_tokens": options.tokens, "ignore_eos": True, "temperature": 1.0},
            }
            for kind in KINDS[:2]:
                # Compiled kernels, caches, the first schema.
                measure(server, fields, kind, options.streams, names)
            for kind in (*KINDS[turn % 3 :], *KINDS[: turn % 3]):
                rate = measure(server, fields, kind, options.streams, names)
                found[engine_name, kind].append(rate)
                print(json.dumps({"engine": engine_name, "schema": kind, "tokens_per_s": rate}), flush=True)
        finally:
            server.process.close()
    for engine_name, kind in found:
        rates, free = found[engine_name, kind], found[engine_name, "none"]
        ratios = [rate / other for rate, other in zip(rates, free, strict=True)]
        print(
            f"{engine_name:<12} {kind:<10} {statistics.median(rates):>9.1f} tokens/s, of none: "
            f"median {statistics.median(ratios):.3f}, best {max(rates) / max(free):.3f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
