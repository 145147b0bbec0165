"""Settings that several commands share, so that they mean the same in each."""

from __future__ import annotations

from typing import Annotated

from splitserve.engine_core.settings.setting import Setting

# A descriptor is a C int.
MAX_DESCRIPTOR = 2**31 - 1
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
QUANTIZATIONS = ("none", "int8", "int4", "w8a8")

LogLevel = Annotated[str, Setting("least severe message to log", "connections", choices=LOG_LEVELS)]
LogFormat = Annotated[
    str,
    Setting("lines of text, or one JSON object per line", "connections", choices=LOG_FORMATS),
]
KeysDirectory = Annotated[
    str,
    Setting(
        "directory made by `splitserve keys`, needed for TCP beyond this machine",
        "connections",
        flag="--keys",
        metavar="DIR",
        default="none",
    ),
]
InsecureTcp = Annotated[
    bool,
    Setting(
        "allow TCP beyond this machine without keys: anyone who reaches the port controls the engine",
        "connections",
        flag="--insecure",
    ),
]
HeartbeatFd = Annotated[
    int | None,
    Setting(
        "inherited memory where its loop shows that it turns",
        "launch",
        low=0,
        high=MAX_DESCRIPTOR,
        default="none",
        serve=False,
    ),
]
