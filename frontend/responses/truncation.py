"""truncation: auto: which turns of a conversation that is too long are left out?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from splitserve.engine_core.errors import ContextLengthError
from splitserve.frontend.openai.plan import Plan
from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.text.chat.messages import ChatMessage

_LEADING = ("system", "developer")


async def truncated_plan(
    plan: Callable[[ChatRequest], Awaitable[Plan[ChatRequest]]], chat: ChatRequest
) -> Plan[ChatRequest]:
    """Return the plan of a chat, or of the longest end of it that fits the model's context.

    Args:
        plan: makes the plan of a chat, or raises ContextLengthError.
        chat: all of it.

    Raises:
        ContextLengthError: not even the last turn fits.
    """
    try:
        return await plan(chat)
    except ContextLengthError as error:
        too_long = error
    ends, found = shorter_conversations(chat.messages), None
    low, high = 0, len(ends)
    while low < high:
        middle = (low + high) // 2
        try:
            found, high = await plan(msgspec.structs.replace(chat, messages=ends[middle])), middle
        except ContextLengthError:
            low = middle + 1
    if found is None:
        raise too_long
    return found


def shorter_conversations(messages: Sequence[ChatMessage]) -> list[list[ChatMessage]]:
    """Return what is left without the first turn, without the first two, and so on to the last.

    A turn begins with a message of the user, so that no result is parted from its call. System messages
    before the first turn stay.
    """
    num_leading = next((i for i, each in enumerate(messages) if each.role not in _LEADING), len(messages))
    starts = [i for i, each in enumerate(messages) if each.role == "user" and i > num_leading]
    return [[*messages[:num_leading], *messages[start:]] for start in starts]
