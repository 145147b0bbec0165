"""What `splitserve batch` may be told."""

# No "from __future__ import annotations": --help would then have to evaluate each declaration.
from typing import Annotated

from splitserve.client.target.settings import TargetSettings
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.setting import Setting


class BatchSettings(TargetSettings, frozen=True, kw_only=True):
    """Settings of a batch."""

    input_file: Annotated[
        str,
        Setting(
            "file of requests: a JSON object per line, with custom_id, url and body",
            "files",
            alias="-i",
            metavar="FILE",
            default="must be given",
        ),
    ] = ""
    output_file: Annotated[
        str,
        Setting(
            "file of answers; what it has already is not asked again",
            "files",
            alias="-o",
            metavar="FILE",
            default="must be given",
        ),
    ] = ""
    overwrite: Annotated[bool, Setting("begin the file of answers anew", "files")] = False
    max_concurrency: Annotated[int, Setting("requests in flight at most", "requests", low=1, high=65536)] = (
        128
    )
    max_retries: Annotated[
        int,
        Setting(
            "how often a request is sent again after a fault that may pass: no connection, 429, 5xx",
            "requests",
            low=0,
            high=1000,
        ),
    ] = 8
    disable_tqdm: Annotated[bool, Setting("show no progress", "requests")] = False

    def validate(self) -> None:
        """Check every value against its declaration, and that both files are named.

        Raises:
            ConfigError: names the flag and what it takes.
        """
        super().validate()
        for flag, value in (("--input-file", self.input_file), ("--output-file", self.output_file)):
            if not value:
                raise ConfigError(f"{flag} must be given")
