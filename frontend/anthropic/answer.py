"""What whole messages and streams share: ids, why a message stopped, its usage, its beginning."""

from __future__ import annotations

import secrets

from splitserve.frontend.anthropic.schema.events import StopDelta
from splitserve.frontend.anthropic.schema.response import MessagesUsage, StopReason
from splitserve.frontend.http.errors import HttpError
from splitserve.frontend.openai.answers.usage import UsageCounter

_ID_BYTES = 12
_REASONS: dict[str | None, StopReason] = {"length": "max_tokens", "tool_calls": "tool_use"}


def new_tool_use_id() -> str:
    """Return an id for a use of a tool that no other has."""
    return f"toolu_{secrets.token_hex(_ID_BYTES)}"


def stop_of(finish_reason: str | None, stop: str | int | None) -> StopDelta:
    """Return why a message stopped.

    Args:
        finish_reason: as a chat's choice has it.
        stop: the stop string or token id that ended it, None for neither.

    Raises:
        HttpError: the engine gave it up, for which this API has no reason.
    """
    if finish_reason == "abort":
        raise HttpError(503, "engine_unavailable", "the engine ended the request", 1.0)
    if isinstance(stop, str):
        return StopDelta("stop_sequence", stop)
    return StopDelta(_REASONS.get(finish_reason, "end_turn"), None)


def usage_of(counter: UsageCounter) -> MessagesUsage:
    """Return the tokens so far; those of the prompt that were cached are counted apart."""
    usage = counter.usage()
    cached = usage.prompt_tokens_details.cached_tokens
    return MessagesUsage(
        input_tokens=usage.prompt_tokens - cached,
        output_tokens=usage.completion_tokens,
        cache_read_input_tokens=cached,
    )
