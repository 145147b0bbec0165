"""One log format for every process of the engine side: time level logger event key=value ..."""

from __future__ import annotations

import json
import logging
import re
import sys

_PLAIN = re.compile(r"[\w.:/@%+,\[\]-]+", re.ASCII)
_MAX_VALUE_CHARS = 300


def configure_logging(level: str) -> None:
    """Send the records of this process to stderr in the one format; call once, in a command's main."""
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )


def log_event(logger: logging.Logger, level: int, event: str, **fields: object) -> None:
    """Log one event; its values are escaped and cut, so that no client can forge or flood a line."""
    if logger.isEnabledFor(level):
        logger.log(
            level, "%s", " ".join([event, *(f"{key}={_value(value)}" for key, value in fields.items())])
        )


def _value(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if len(text) > _MAX_VALUE_CHARS:
        text = text[:_MAX_VALUE_CHARS] + "..."
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
