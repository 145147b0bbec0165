"""What does one trace look like, from a client through frontend and engine? Draws it from real spans.

Usage: python -m benchmarks.trace_picture FILE.svg

Starts `splitserve serve` with the demo model and room for one row, so that the request has to wait for
another one, and a collector in this process. The client is one that OpenTelemetry's SDK instruments: its span
is the parent of the server's. Needs the extras otel, bench and test.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from benchmarks.startup import free_port
from tests.frontend.observability.collector import Collector, Seen, collecting

LIMIT_S = 120.0
QUESTION = "Tell me a short story about a lighthouse."
COLOURS = {
    "client": "#8a8f98",
    "splitserve": "#4c78a8",
    "queue": "#e0a030",
    "prefill": "#d1605e",
    "decode": "#59a14f",
}
SHOWN = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")


@contextlib.contextmanager
def running(collector: Collector) -> Iterator[str]:
    """Serve the demo model, one row at a time; yields the address."""
    port = free_port()
    flags = ["--port", str(port), "--max-num-seqs", "1", "--otlp-traces-endpoint", collector.url]
    command = [sys.executable, "-m", "splitserve.engine_core.launcher.cli", "serve", *flags]
    process = subprocess.Popen(command, env={**os.environ, "OTEL_BSP_SCHEDULE_DELAY": "100"})
    url = f"http://127.0.0.1:{port}"
    try:
        end_s = time.monotonic() + LIMIT_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/ready").status_code == 200:
                    break
            assert time.monotonic() < end_s, "the server is not ready"
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def chat(client: httpx.Client, max_tokens: int, headers: dict[str, str]) -> None:
    """Stream a chat to its end."""
    message = {"role": "user", "content": QUESTION}
    body = {"messages": [message], "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        for _ in answer.iter_raw():
            pass


def ask_beside_another(client: httpx.Client, collector: Collector) -> list[Seen]:
    """Trace a request that arrives while another runs; return its spans."""
    provider = TracerProvider(resource=Resource({"service.name": "client"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=collector.url)))
    chat(client, 4, {})
    other = threading.Thread(target=chat, args=(client, 40, {}))
    other.start()
    time.sleep(0.02)
    headers: dict[str, str] = {}
    with provider.get_tracer("client").start_as_current_span("ask", kind=trace.SpanKind.CLIENT) as span:
        TraceContextTextMapPropagator().inject(headers)
        chat(client, 60, headers)
    other.join()
    collector.wait_for(3)
    trace_id = trace.format_trace_id(span.get_span_context().trace_id)
    return [each for each in collector.spans if each.trace_id == trace_id]


def draw(spans: Sequence[Seen], path: Path) -> None:
    """Write a bar per span, indented as they are nested."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    rows = list(in_order(spans, ""))
    zero_ns = min(span.start_ns for _, span in rows)
    figure = Figure(figsize=(9, 0.45 * len(rows) + 0.9), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    length_ms = max(span.end_ns - zero_ns for _, span in rows) / 1e6
    for row, (_, span) in enumerate(rows):
        begin_ms, took_ms = (span.start_ns - zero_ns) / 1e6, (span.end_ns - span.start_ns) / 1e6
        colour = COLOURS.get(span.name) or COLOURS[str(span.resource["service.name"])]
        axes.barh(row, max(took_ms, length_ms / 400), left=begin_ms, color=colour)
        is_long = took_ms > length_ms / 4
        axes.annotate(
            f"{took_ms:.1f} ms   {about(span)}",
            (begin_ms if is_long else begin_ms + took_ms, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
            color="white" if is_long else "black",
        )
    axes.set_yticks(range(len(rows)), ["    " * depth + span.name for depth, span in rows])
    axes.set_yticklabels(axes.get_yticklabels(), ha="left")
    axes.tick_params("y", length=0, pad=190)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds")
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(path, format="svg", metadata={"Date": None})


def about(span: Seen) -> str:
    """Return some attributes of the model's span; nothing of others."""
    if not span.attributes.keys() >= {*SHOWN}:
        return ""
    return "{} tokens in, {} out".format(*(span.attributes[key] for key in SHOWN))


def in_order(spans: Sequence[Seen], parent_id: str, depth: int = 0) -> Iterator[tuple[int, Seen]]:
    """Yield the spans as a tree is read, with their depth."""
    below = sorted((span for span in spans if span.parent_id == parent_id), key=lambda span: span.start_ns)
    for span in below:
        yield depth, span
        yield from in_order(spans, span.span_id, depth + 1)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, metavar="FILE.svg")
    path = parser.parse_args().file
    with (
        collecting() as collector,
        running(collector) as url,
        httpx.Client(base_url=url, timeout=LIMIT_S) as client,
    ):
        draw(ask_beside_another(client, collector), path)


if __name__ == "__main__":
    main()
