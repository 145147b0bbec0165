"""How long may a request take, and how long may it wait? The fields timeout and queue_timeout."""

from __future__ import annotations

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.openai.schema.fields import MAX_TIMEOUT_S, GenerationFields


def read_timeouts(body: GenerationFields) -> tuple[float, float]:
    """Return both in seconds, 0 for those left out.

    Raises:
        InvalidRequestError: one is not above 0, or longer than a week.
    """
    return _seconds("timeout", body.timeout), _seconds("queue_timeout", body.queue_timeout)


def _seconds(name: str, value: float | None) -> float:
    if value is None:
        return 0.0
    if not 0 < value <= MAX_TIMEOUT_S:
        raise InvalidRequestError(
            f"{name} must be a number of seconds above 0 and up to {MAX_TIMEOUT_S}, got {value:g}", name
        )
    return value
