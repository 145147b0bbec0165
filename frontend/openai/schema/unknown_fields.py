"""Fields no schema knows: named once in the log, or refused in strict mode."""

from __future__ import annotations

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.event_log import log_event

MAX_NAMES = 256


class UnknownFields:
    """Remembers which unknown fields were logged, at most MAX_NAMES of them."""

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._logged: set[str] = set()

    def check(self, names: frozenset[str], known: frozenset[str]) -> None:
        """Log or refuse the names that are not known.

        Raises:
            InvalidRequestError: in strict mode; code "unknown_parameter", param the field.
        """
        unknown = names - known
        if not unknown:
            return
        if self._strict:
            name = min(unknown)[:64]
            raise InvalidRequestError(f"{name} is not a known field", name, "unknown_parameter")
        for name in sorted(unknown - self._logged):
            if len(self._logged) >= MAX_NAMES:
                return
            self._logged.add(name)
            log_event("unknown_field_ignored", {"field": name[:64]})
