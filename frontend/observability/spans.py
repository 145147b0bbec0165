"""The spans of a traced request, made at its end and sent over OTLP by OpenTelemetry's SDK.

    POST /v1/chat/completions        server; from the headers to the last byte
      tokenize                       template and tokenizer
      chat MODEL                     the model's work, with the attributes of the GenAI conventions
        queue                        in the engine's queue, by the engine's clock
        prefill                      from there to the first token
        decode                       from the first token to the last

The SDK is an extra: importing this module needs it. What is exported waits in a bounded queue; a thread of
the SDK sends it, and drops what a collector does not take.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping

from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import Scope

from splitserve.engine_core.process.version import software_version
from splitserve.frontend.observability.protocol import make_exporter
from splitserve.frontend.observability.request_trace import (
    AttributeValue,
    GenerationTrace,
    RequestTrace,
    SequenceTrace,
)

# A collector that is away holds up neither requests nor, for longer than this, the end of the process.
EXPORT_TIMEOUT_S = 5.0
_PROPAGATED = ("traceparent", "tracestate")


class OtelTracer:
    """Spans of one process; belongs to the event loop."""

    def __init__(self, endpoint: str, sample_ratio: float, frontend_id: str) -> None:
        """Start the thread that exports.

        Args:
            endpoint: URL of a collector; was checked.
            sample_ratio: of the requests whose caller has not decided, 0 to 1.
            frontend_id: names this process.
        """
        resource = Resource(
            {
                "service.name": "splitserve",
                "service.version": software_version(),
                "service.instance.id": frontend_id,
            }
        )
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES count more.
        resource = resource.merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_ratio)), resource=resource, shutdown_on_exit=False
        )
        exporter = make_exporter(endpoint, EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("splitserve.frontend", software_version())
        self._propagator = TraceContextTextMapPropagator()
        self._open: dict[RequestTrace, otel.Span] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Send what is left when the context is closed."""
        try:
            yield
        finally:
            await asyncio.to_thread(self._provider.shutdown)

    def begin(self, scope: Scope) -> RequestTrace | None:
        """Begin the span of a request, below that of its caller if the caller names one."""
        span = self._tracer.start_span(
            scope["method"],
            self._caller(scope),
            otel.SpanKind.SERVER,
            {"http.request.method": scope["method"]},
        )
        if not span.is_recording():
            return None
        trace = RequestTrace(otel.format_trace_id(span.get_span_context().trace_id))
        self._open[trace] = span
        return trace

    def end(self, trace: RequestTrace, scope: Scope, status: int) -> None:
        """Make the spans below that of the request, and end it."""
        span = self._open.pop(trace)
        context = otel.set_span_in_context(span)
        route = getattr(scope.get("route"), "path", "")
        if route:
            span.update_name(f"{scope['method']} {route}")
            span.set_attribute("http.route", route)
        span.set_attribute("http.response.status_code", status)
        span.set_attribute("splitserve.request_id", scope["state"]["request_id"])
        error = trace.error or (str(status) if status >= 400 else "")
        if error:
            span.set_attribute("error.type", error)
        # What a client does wrong, or a client that leaves, is no fault of the server.
        if status >= 500 or (trace.error and status < 400):
            span.set_status(otel.StatusCode.ERROR, error)
        if trace.tokenized_s is not None:
            self._make("tokenize", context, trace, trace.tokenized_s)
        if trace.generation is not None:
            self._generation(context, trace, trace.generation)
        span.end()

    def _caller(self, scope: Scope) -> Context:
        """Return the caller's context; an empty one if there is no valid traceparent."""
        carrier = {
            name: value.decode("latin-1")
            for key, value in scope["headers"]
            if (name := key.decode("latin-1")) in _PROPAGATED
        }
        return self._propagator.extract(carrier, Context())

    def _generation(self, context: Context, trace: RequestTrace, generation: GenerationTrace) -> None:
        began_s = min(each.arrived_s for each in generation.sequences)
        span = self._tracer.start_span(
            f"{generation.operation} {generation.model}",
            context,
            attributes=generation.attributes,
            start_time=trace.unix_ns(began_s),
        )
        below = otel.set_span_in_context(span)
        if trace.error:
            span.set_attribute("error.type", trace.error)
            span.set_status(otel.StatusCode.ERROR, trace.error)
        ends_s = [self._sequence(below, trace, i, each) for i, each in enumerate(generation.sequences)]
        span.end(trace.unix_ns(max(ends_s)))

    def _sequence(self, context: Context, trace: RequestTrace, choice: int, each: SequenceTrace) -> float:
        """Make the spans of one sequence; return when it ended, as far as it is known."""
        which: dict[str, AttributeValue] = {"splitserve.choice": choice}
        if not each.num_tokens:
            return each.arrived_s
        # The wait was measured by the engine's clock, so a fast answer may seem to precede the first run.
        ran_s = min(each.arrived_s + each.queue_time_s, each.first_token_s)
        self._make("queue", context, trace, (each.arrived_s, ran_s), which)
        self._make("prefill", context, trace, (ran_s, each.first_token_s), which)
        decode = which | {"gen_ai.usage.output_tokens": each.num_tokens}
        if each.num_preemptions is not None:
            decode["splitserve.num_preemptions"] = each.num_preemptions
        self._make("decode", context, trace, (each.first_token_s, each.last_token_s), decode)
        return each.last_token_s

    def _make(
        self,
        name: str,
        context: Context,
        trace: RequestTrace,
        times_s: tuple[float, float],
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> None:
        span = self._tracer.start_span(
            name, context, attributes=attributes, start_time=trace.unix_ns(times_s[0])
        )
        span.end(trace.unix_ns(times_s[1]))
