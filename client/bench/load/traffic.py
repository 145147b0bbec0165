"""When requests are sent, and how many at once: flags named as those of `vllm bench serve`."""

# No "from __future__ import annotations": --help would then have to evaluate each declaration.
import math
from typing import Annotated

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.setting import Setting, Settings

RAMPS = ("none", "linear", "exponential")
MAX_CONCURRENCY = 100_000
MAX_RPS = 1e6


class TrafficSettings(Settings, frozen=True, kw_only=True):
    """Settings of the load."""

    request_rate: Annotated[
        float,
        Setting("requests per second, at random times; inf sends all at once", "traffic", metavar="RPS"),
    ] = math.inf
    burstiness: Annotated[
        float,
        Setting(
            "shape of the gamma distribution of times between requests: 1 is Poisson, less is burstier",
            "traffic",
            metavar="SHAPE",
            low=1e-3,
            high=1e6,
        ),
    ] = 1.0
    max_concurrency: Annotated[
        int | None,
        Setting(
            "requests in flight at most; later ones wait in the client",
            "traffic",
            low=1,
            high=MAX_CONCURRENCY,
            default="no limit",
        ),
    ] = None
    ramp_up_strategy: Annotated[
        str, Setting("how the request rate grows from start to end", "traffic", choices=RAMPS)
    ] = "none"
    ramp_up_start_rps: Annotated[
        float | None,
        Setting("request rate at first", "traffic", metavar="RPS", low=1e-3, high=1e6, default="not given"),
    ] = None
    ramp_up_end_rps: Annotated[
        float | None,
        Setting("request rate at last", "traffic", metavar="RPS", low=1e-3, high=1e6, default="not given"),
    ] = None
    num_warmups: Annotated[
        int, Setting("requests before the measurement, which are not counted", "traffic", low=0, high=100_000)
    ] = 0

    def validate(self) -> None:
        """Check every value against its declaration, and the constraints between them.

        Raises:
            ConfigError: names the flag and what it takes.
        """
        super().validate()
        if not self.request_rate > 0:
            raise ConfigError(f"--request-rate must be above 0, or inf, got {self.request_rate}")
        ends = (self.ramp_up_start_rps, self.ramp_up_end_rps)
        if (None in ends) != (self.ramp_up_strategy == "none") or (ends[0] is None) != (ends[1] is None):
            raise ConfigError(
                "--ramp-up-strategy linear or exponential goes with --ramp-up-start-rps and --ramp-up-end-rps"
            )
        if self.ramp_up_strategy != "none" and self.request_rate != math.inf:
            raise ConfigError("either --request-rate or --ramp-up-strategy, not both")
