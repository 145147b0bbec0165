"""How every process logs, as text or JSON: time, level, logger, event and its fields.

    text    2026-11-23 17:31:30.123 INFO frontend listening address=http://127.0.0.1:8000 pid=4711
    json    {"time": "2026-11-23T17:31:30.123+00:00", "level": "info", "logger": "frontend",
            "event": "listening", "address": "http://127.0.0.1:8000", "pid": 4711}

JSON is one object per line. In text, every line that is not indented begins a record: values and control
characters are escaped, and tracebacks are indented. So no client or peer can forge a record.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

MAX_VALUE_CHARS = 1000
MAX_ITEMS = 100
_PLAIN = re.compile(r"[\w.:/@%+,\[\]-]+", re.ASCII)
# C0 except tab and line feed, DEL, and C1, which terminals interpret too.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}
# Libraries that repeat what our events already say, or whose log lines clients can trigger at will.
_QUIETED = {"uvicorn": logging.ERROR, "httpx": logging.WARNING, "asyncio": logging.WARNING}


def configure_logging(level: str, form: str = "text") -> None:
    """Log to stderr in this process; called by a command's main, and again once the settings are known.

    Args:
        level: least severe level to log, in lower case.
        form: "text" or "json".
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name, least in _QUIETED.items():
        logging.getLogger(name).setLevel(least)


def set_log_level(level: str) -> None:
    """Log what is at least as severe as this from now on; libraries stay as quiet as they are.

    Args:
        level: in lower case.
    """
    root = logging.getLogger()
    if level != log_level():
        # At the level that was, or a change to a more severe one would not be seen.
        log_event(logging.getLogger(__name__), root.level, "log level", level=level)
        root.setLevel(level.upper())


def log_level() -> str:
    """Return the least severe level that this process logs, in lower case."""
    return logging.getLevelName(logging.getLogger().level).lower()


def log_event(
    logger: logging.Logger,
    level: int,
    name: str,
    error: BaseException | None = None,
    /,
    **fields: object,
) -> None:
    """Log one event.

    Args:
        logger: of the process, or of the module.
        level: of the logging module.
        name: of the event; stable.
        error: exception, logged with its traceback.
        fields: never prompt or output text; None values are left out, long ones are truncated.
    """
    if logger.isEnabledFor(level):
        given = {key: value for key, value in fields.items() if value is not None}
        logger.log(level, Event(name, given), exc_info=error, stacklevel=2)


class Whole(str):
    """A value that is logged whole, however long it is: who made it has bounded it."""

    __slots__ = ()


class Event:
    """The message of a record: a name and fields. As text: `name key=value ...` on one line."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: Mapping[str, object]) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={_text(value)}" for key, value in self.fields.items())])


class TextFormatter(logging.Formatter):
    """Formats a record as a line, followed by its traceback as indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record without a trailing line feed."""
        time = self.formatTime(record, "%Y-%m-%d %H:%M:%S")
        head = f"{time}.{int(record.msecs):03d} {record.levelname} {_logger_name(record)}"
        text = f"{head} {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text.translate(_CONTROLS).replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object: an event with its fields, or a library's "message"."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object on one line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = {"time": time, "level": record.levelname.lower(), "logger": _logger_name(record)}
        if isinstance(record.msg, Event):
            head["event"] = record.msg.name
            fields = {key: _json_value(value) for key, value in record.msg.fields.items()}
        else:
            fields = {"message": record.getMessage()}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        # The standard keys come first, and no field can replace them.
        return json.dumps({**head, **fields, **head})


def _logger_name(record: logging.LogRecord) -> str:
    return record.name.removeprefix("splitserve.")


def _text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        value = ",".join(str(item) for item in value[:MAX_ITEMS])
    text = f"{value:.3f}" if isinstance(value, float) else _cut(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _json_value(value: object) -> object:
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value[:MAX_ITEMS]]
    return value if isinstance(value, int) else _cut(value)


def _cut(value: object) -> str:
    text = str(value)
    if isinstance(value, Whole):
        return text
    return text if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + "..."
