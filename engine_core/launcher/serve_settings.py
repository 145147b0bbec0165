"""The flags of `splitserve serve`: its own, those of the engine, and those it passes on to every frontend.

Of the frontend's package this module imports the declarations, and nothing that serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.settings.setting import Setting, Settings, declared
from splitserve.frontend.config import FRONTEND_SETTINGS, FrontendConfig, Host, Port, UnixSocket

MAX_FRONTENDS = 64


class ServeSettings(Settings, frozen=True, kw_only=True):
    """What the launcher decides itself."""

    host: Host = "127.0.0.1"
    port: Port = 8000
    uds: UnixSocket = ""
    api_server_count: Annotated[
        int,
        Setting(
            "number of api-frontend processes that share the address", "address", low=1, high=MAX_FRONTENDS
        ),
    ] = 1


SERVE = declared(ServeSettings)
ENGINE = tuple(each for each in declared(EngineConfig) if each.setting.serve)
_TAKEN = {each.flag for each in (*SERVE, *ENGINE)}
# --keys, --insecure, --log-level and --log-format are the engine's: the frontends reach it over a private
# Unix socket, and are told how it logs.
FRONTEND = tuple(each for each in FRONTEND_SETTINGS if each.setting.serve and each.flag not in _TAKEN)


def frontend_config(given: Mapping[str, object]) -> FrontendConfig:
    """Return what was given for the frontends, unchecked: api-frontend does that."""
    return msgspec.convert(given, FrontendConfig)
