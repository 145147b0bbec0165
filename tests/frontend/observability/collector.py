"""A collector of OpenTelemetry traces in a thread of this process, and what a client adds to its requests."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

DEADLINE_S = 60.0
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
NOT_SAMPLED = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-00"}


class Seen(NamedTuple):
    """One span as it arrived."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start_ns: int
    end_ns: int
    status: int
    attributes: dict[str, object]
    resource: dict[str, object]


class Collector:
    """The spans that have arrived."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Seen] = []
        self.changed = threading.Condition()

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self.changed:
            for group in request.resource_spans:
                resource = {each.key: value_of(each.value) for each in group.resource.attributes}
                self.spans += [seen(span, resource) for scope in group.scope_spans for span in scope.spans]
            self.changed.notify_all()

    def wait_for(self, num_roots: int) -> list[Seen]:
        """Wait until so many spans of whole requests have arrived; they come after those below them."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.roots()) >= num_roots, DEADLINE_S), self.spans
            return list(self.spans)

    def roots(self) -> list[Seen]:
        return [span for span in self.spans if span.kind == Span.SpanKind.SPAN_KIND_SERVER]


def seen(span: Span, resource: dict[str, object]) -> Seen:
    return Seen(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code,
        {each.key: value_of(each.value) for each in span.attributes},
        resource,
    )


def value_of(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None


@contextlib.contextmanager
def collecting_over_grpc() -> Iterator[Collector]:
    """Run a collector on a free port that speaks gRPC."""
    grpc = pytest.importorskip("grpc")

    def export(body: bytes, context: object) -> bytes:
        collector.take(body)
        return ExportTraceServiceResponse().SerializeToString()

    name = "opentelemetry.proto.collector.trace.v1.TraceService"
    handler = grpc.method_handlers_generic_handler(
        name, {"Export": grpc.unary_unary_rpc_method_handler(export)}
    )
    server = grpc.server(ThreadPoolExecutor(1), [handler])
    collector = Collector(f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            zipped = self.headers.get("content-encoding") == "gzip"
            collector.take(gzip.decompress(body) if zipped else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
