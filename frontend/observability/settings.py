"""The settings of an api-frontend that say what it shows to those who watch it."""

# No "from __future__ import annotations": --help would compile each declaration from its text, 10 ms in all.
from typing import Annotated

from splitserve.engine_core.settings.setting import Setting, Settings
from splitserve.frontend.observability.protocol import check_endpoint

_GROUP = "observability"


class ObservabilitySettings(Settings, frozen=True, kw_only=True):
    """Metrics, logged requests and traces."""

    metrics_compat: Annotated[
        str,
        Setting(
            "publish metrics under another engine's names, too, for its dashboards and scalers",
            _GROUP,
            choices=("none", "vllm"),
            docs=", see [Metrics](metrics.md#under-vllms-names)",
        ),
    ] = "none"
    log_requests: Annotated[
        str,
        Setting(
            "what to log of requests beside a line at the end of each: none, bodies without their texts "
            "(redacted), or bodies and answers (full)",
            _GROUP,
            choices=("none", "redacted", "full"),
            docs=", see [Observability](observability.md#requests)",
        ),
    ] = "none"
    otlp_traces_endpoint: Annotated[
        str,
        Setting(
            "URL of a collector that takes OpenTelemetry traces, over HTTP or gRPC",
            _GROUP,
            metavar="URL",
            default="none",
            docs=", see [Observability](observability.md#traces)",
        ),
    ] = ""
    trace_sample_ratio: Annotated[
        float,
        Setting(
            "share of requests to trace whose caller has not decided whether they are", _GROUP, low=0, high=1
        ),
    ] = 1.0

    def validate(self) -> None:
        """Check every value against its declaration, and the endpoint.

        Raises:
            ConfigError: names the flag and what it takes.
        """
        super().validate()
        if self.otlp_traces_endpoint:
            check_endpoint(self.otlp_traces_endpoint)
