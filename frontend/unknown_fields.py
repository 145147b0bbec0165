"""Fields no schema knows: named once in the log, or refused in strict mode."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.process.logs import log_event
from splitserve.frontend.typed_json.types import path_text
from splitserve.frontend.typed_json.unknown import UnknownField

logger = logging.getLogger("frontend")

MAX_NAMES = 256
MAX_NAME_CHARS = 64


class UnknownFields:
    """Remembers which unknown fields were logged, at most MAX_NAMES of them."""

    def __init__(self, strict: bool, level: int = logging.INFO) -> None:
        """Start with none logged; `level` is that of the log lines."""
        self._strict = strict
        self._level = level
        self._logged: set[str] = set()

    def check(self, unknown: Iterable[UnknownField]) -> None:
        """Log or refuse fields that are not known.

        Raises:
            InvalidRequestError: in strict mode; code "unknown_parameter", param the field.
        """
        if self._strict:
            for field in unknown:
                *places, name = field.path
                path = path_text((*places, str(name)[:MAX_NAME_CHARS]))
                raise InvalidRequestError(f"{path} is not a known field", path, "unknown_parameter")
        for pattern in sorted({field.pattern for field in unknown} - self._logged):
            if len(self._logged) >= MAX_NAMES:
                return
            self._logged.add(pattern)
            log_event(logger, self._level, "unknown_field_ignored", field=pattern[:MAX_NAME_CHARS])
