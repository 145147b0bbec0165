"""Log lines as events: a stable name and key=value fields, escaped so that no client can forge a line."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping

logger = logging.getLogger("frontend")

_PLAIN = re.compile(r"[A-Za-z0-9_.:/+\-]{1,200}")
MAX_VALUE_CHARS = 200

Value = str | int | float | bool | None


def log_event(name: str, fields: Mapping[str, Value], level: int = logging.INFO) -> None:
    """Log one event; fields that are None are left out.

    Args:
        name: stable, lower case with underscores.
        fields: never prompt or output text.
        level: of the logging module.
    """
    if logger.isEnabledFor(level):
        parts = [f"{key}={_value(value)}" for key, value in fields.items() if value is not None]
        logger.log(level, "%s", " ".join([name, *parts]))


def set_up_logging(level: str) -> None:
    """Send this process's log to standard error; called once, by the command line."""
    handler = logging.StreamHandler(sys.stderr)
    line = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s"
    handler.setFormatter(logging.Formatter(line, "%Y-%m-%d %H:%M:%S"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # uvicorn repeats what our own events say better, and clients can cause its warnings at will.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    for noisy in ("httpx", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _value(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text[:MAX_VALUE_CHARS])
