"""The settings of an api-frontend that say which responses are kept, where, and for how long."""

# No "from __future__ import annotations": --help would compile each declaration from its text, 10 ms in all.
from typing import Annotated

from splitserve.engine_core.settings.flag_values import parse_bytes
from splitserve.engine_core.settings.setting import Setting
from splitserve.frontend.observability.settings import ObservabilitySettings

_GROUP = "response store"


class StoreSettings(ObservabilitySettings, frozen=True, kw_only=True):
    """The response store; sizes are bytes, `_s` are seconds."""

    response_store: Annotated[
        str,
        Setting(
            "where responses are kept: path of an SQLite file, postgresql://..., redis://... or none",
            _GROUP,
            metavar="PLACE",
            default="none; of `splitserve serve` a file of its own, deleted when it ends",
        ),
    ] = ""
    response_ttl_s: Annotated[
        int,
        Setting(
            "seconds for which a response is kept",
            _GROUP,
            metavar="SECONDS",
            low=1,
            high=10 * 365 * 86400,
            docs="; 30 days, as at OpenAI",
        ),
    ] = 30 * 86400
    response_store_bytes: Annotated[
        int,
        Setting(
            "maximum size of the responses that are kept, e.g. 1G; the oldest are deleted first",
            _GROUP,
            metavar="BYTES",
            low=2**20,
            high=2**50,
            parse=parse_bytes,
            docs="; as they are stored, which is compressed",
        ),
    ] = 256 * 2**20
    max_background_responses: Annotated[
        int,
        Setting(
            "maximum number of responses that a frontend generates in the background; beyond it 429",
            _GROUP,
            low=1,
            high=10**6,
        ),
    ] = 256
