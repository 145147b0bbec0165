"""What is told of a run: flags named as those of `vllm bench serve`."""

# No "from __future__ import annotations": --help would then have to evaluate each declaration.
import math
from typing import Annotated

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.setting import Setting, Settings

METRICS = ("ttft", "tpot", "itl", "e2el", "client_queue_time")
GOODPUT_METRICS = ("ttft", "tpot", "e2el")


class ReportSettings(Settings, frozen=True, kw_only=True):
    """Settings of table, file and picture."""

    percentile_metrics: Annotated[
        str,
        Setting(f"what to print, of {','.join(METRICS)}", "report", metavar="NAMES"),
    ] = "ttft,tpot,itl"
    metric_percentiles: Annotated[
        str, Setting("percentiles to print, such as 50,90,99", "report", metavar="P,P")
    ] = "99"
    goodput: Annotated[
        tuple[str, ...],
        Setting(
            f"count requests that keep these limits, in ms, of {', '.join(GOODPUT_METRICS)}",
            "report",
            metavar="NAME:MS",
        ),
    ] = ()
    save_result: Annotated[bool, Setting("write the figures to a JSON file", "report")] = False
    save_detailed: Annotated[bool, Setting("with those of each request, and its text", "report")] = False
    result_dir: Annotated[
        str, Setting("directory of the file", "report", metavar="DIR", default="this one")
    ] = ""
    result_filename: Annotated[
        str,
        Setting("its name", "report", metavar="FILE", default="made of backend, rate, model and time"),
    ] = ""
    metadata: Annotated[
        tuple[str, ...], Setting("further entries of the file", "report", metavar="KEY=VALUE")
    ] = ()
    label: Annotated[str, Setting("first word of the file's name", "report", default="the backend")] = ""
    plot: Annotated[
        str,
        Setting(
            "draw the latencies into this file, .svg, .png or .pdf; needs splitserve[bench]",
            "report",
            metavar="FILE",
            default="none",
        ),
    ] = ""
    disable_tqdm: Annotated[bool, Setting("show no progress", "report")] = False

    def validate(self) -> None:
        """Check every value against its declaration.

        Raises:
            ConfigError: names the flag and what it takes.
        """
        super().validate()
        for read in (self.percentiles, self.metrics, self.goodput_limits_s, self.entries):
            read()

    def metrics(self) -> tuple[str, ...]:
        """Return the metrics to print.

        Raises:
            ConfigError: there is another.
        """
        names = tuple(name.strip() for name in self.percentile_metrics.split(",") if name.strip())
        if unknown := [name for name in names if name not in METRICS]:
            raise ConfigError(f"--percentile-metrics takes {', '.join(METRICS)}, got {unknown[0]!r}")
        return names

    def percentiles(self) -> tuple[float, ...]:
        """Return the percentiles to print.

        Raises:
            ConfigError: one is no number from 0 to 100.
        """
        try:
            found = tuple(float(each) for each in self.metric_percentiles.split(","))
        except ValueError:
            found = (math.nan,)
        if not all(0 <= each <= 100 for each in found):
            raise ConfigError(
                "--metric-percentiles takes numbers from 0 to 100, such as 50,99, "
                f"got {self.metric_percentiles!r}"
            )
        return found

    def goodput_limits_s(self) -> dict[str, float]:
        """Return the limits that good requests keep, by metric, in seconds.

        Raises:
            ConfigError: one is not NAME:MS.
        """
        limits = {}
        for pair in self.goodput:
            name, _, limit = pair.partition(":")
            try:
                limits[name] = float(limit) / 1000
            except ValueError:
                limits[name] = -1.0
            if name not in GOODPUT_METRICS or not limits[name] >= 0:
                raise ConfigError(
                    f"--goodput takes NAME:MS with a name of {', '.join(GOODPUT_METRICS)}, got {pair!r}"
                )
        return limits

    def entries(self) -> dict[str, str]:
        """Return the further entries of the result file.

        Raises:
            ConfigError: one is not KEY=VALUE.
        """
        pairs = [pair.partition("=") for pair in self.metadata]
        if not all(key and equals for key, equals, _ in pairs):
            raise ConfigError("--metadata takes KEY=VALUE")
        return {key: value for key, _, value in pairs}
