"""The settings of an api-frontend that say which files are kept, where, and how batches of them run."""

# No "from __future__ import annotations": --help would compile each declaration from its text, 10 ms in all.
from typing import Annotated

from splitserve.engine_core.settings.flag_values import parse_bytes
from splitserve.engine_core.settings.setting import Setting
from splitserve.frontend.store_settings import StoreSettings

_GROUP = "files and batches"


class BatchSettings(StoreSettings, frozen=True, kw_only=True):
    """The file store and its batches; sizes are bytes, `_s` are seconds."""

    file_store: Annotated[
        str,
        Setting(
            "where files and batches are kept: path of an SQLite file, postgresql://... or none",
            _GROUP,
            metavar="PLACE",
            default="none; of `splitserve serve` a file of its own, deleted when it ends",
            docs=", see [Files and batches](batches.md)",
        ),
    ] = ""
    file_ttl_s: Annotated[
        int,
        Setting(
            "seconds for which a file is kept, unless its upload says otherwise",
            _GROUP,
            metavar="SECONDS",
            low=3600,
            high=10 * 365 * 86400,
            docs="; 30 days, as at OpenAI",
        ),
    ] = 30 * 86400
    file_store_bytes: Annotated[
        int,
        Setting(
            "maximum size of all files and answers; beyond it uploads are refused, and batches end",
            _GROUP,
            metavar="BYTES",
            low=2**20,
            high=2**50,
            parse=parse_bytes,
            docs="; before they are compressed",
        ),
    ] = 4 * 2**30
    max_file_bytes: Annotated[
        int,
        Setting(
            "maximum size of an uploaded file, e.g. 512M",
            _GROUP,
            metavar="BYTES",
            low=1024,
            high=2**40,
            parse=parse_bytes,
        ),
    ] = 200 * 2**20
    max_batch_requests: Annotated[
        int, Setting("maximum number of requests in a batch", _GROUP, low=1, high=10**7)
    ] = 50_000
    max_batch_concurrency: Annotated[
        int,
        Setting(
            "maximum number of batches' requests that a frontend runs at once; a quarter of it while it "
            "serves others",
            _GROUP,
            low=1,
            high=65536,
        ),
    ] = 32
