"""Over which protocol are traces sent, and by which exporter? OpenTelemetry's own variables say."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from splitserve.engine_core.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

# The first that is set counts, as OpenTelemetry's specification has it.
VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
GRPC, HTTP = "grpc", "http/protobuf"
_EXAMPLES = {GRPC: "http://localhost:4317", HTTP: "http://localhost:4318/v1/traces"}
_MODULES = {GRPC: "opentelemetry.exporter.otlp.proto.grpc", HTTP: "opentelemetry.exporter.otlp.proto.http"}


def protocol() -> str:
    """Return GRPC or HTTP.

    Raises:
        ConfigError: the variable asks for another one.
    """
    name, value = next(((name, value) for name in VARIABLES if (value := os.environ.get(name))), ("", HTTP))
    if value not in _MODULES:
        raise ConfigError(f"{name} must be {GRPC} or {HTTP}, got {value[:64]!r}")
    return value


def check_endpoint(url: str) -> None:
    """Check that traces can be sent to a URL.

    Raises:
        ConfigError: it is no URL of HTTP, the protocol is none of ours, or what sends them is not installed.
    """
    parts, wanted = urlsplit(url), protocol()
    if parts.scheme not in ("http", "https") or not parts.hostname:
        hint = f": for gRPC set {VARIABLES[1]}={GRPC}" if parts.scheme == GRPC and wanted != GRPC else ""
        raise ConfigError(
            f"--otlp-traces-endpoint must be a URL such as {_EXAMPLES[wanted]}, got {url!r}{hint}"
        )
    try:
        is_there = all(find_spec(name) is not None for name in ("opentelemetry.sdk", _MODULES[wanted]))
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise ConfigError("--otlp-traces-endpoint needs the extra otel: pip install 'splitserve[otel]'")


def make_exporter(url: str, timeout_s: float) -> SpanExporter:
    """Return what sends spans to a URL that was checked; over gRPC in the clear if that is http.

    Args:
        url: of the collector.
        timeout_s: of one batch, retries included.
    """
    if protocol() == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        over_grpc: SpanExporter = GrpcExporter(
            endpoint=url, insecure=urlsplit(url).scheme == "http", timeout=timeout_s
        )
        return over_grpc
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(endpoint=url, timeout=timeout_s)
