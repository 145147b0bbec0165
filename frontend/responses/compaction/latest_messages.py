"""Which messages of a conversation stay beside its summary, word for word?"""

from __future__ import annotations

from collections.abc import Sequence

from splitserve.frontend.responses.schema.kept_bodies import KeptItem, KeptMessage, KeptRefusal


def latest_messages(items: Sequence[KeptItem], max_chars: int) -> list[KeptMessage]:
    """Return the system messages, and the latest of the user's as long as they are short enough together.

    Args:
        items: of the conversation.
        max_chars: of the user's messages. As many as the context has tokens is about a quarter of it.
    """
    kept: list[KeptMessage] = []
    num_left, has_room = max_chars, True
    for item in reversed(items):
        if not isinstance(item, KeptMessage) or item.role == "assistant":
            continue
        if item.role == "user":
            num_left -= _num_chars(item)
            has_room = has_room and num_left >= 0
            if not has_room:
                continue
        kept.append(item)
    return kept[::-1]


def _num_chars(message: KeptMessage) -> int:
    return sum(len(part.refusal if isinstance(part, KeptRefusal) else part.text) for part in message.content)
