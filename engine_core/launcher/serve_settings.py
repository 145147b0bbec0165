"""Which flags `splitserve serve` takes: its own, those of the engine, and those passed on to every frontend.

From the frontend's package it imports only the declarations, no serving code.
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
    """Settings of the launcher itself."""

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
# An argument of the command, not a flag; a file or the environment may name it, too.
MODEL = next(each for each in declared(EngineConfig) if each.field == "model")
ENGINE = tuple(each for each in declared(EngineConfig) if each.setting.serve)
_TAKEN = {each.flag for each in (*SERVE, *ENGINE)}
# --keys, --insecure, --log-level and --log-format are flags of the engine: frontends reach it over a private
# Unix socket, and get the same log settings.
FRONTEND = tuple(each for each in FRONTEND_SETTINGS if each.setting.serve and each.flag not in _TAKEN)


def frontend_config(given: Mapping[str, object]) -> FrontendConfig:
    """Return the given settings of the frontends, unchecked: api-frontend checks them."""
    return msgspec.convert(given, FrontendConfig)
