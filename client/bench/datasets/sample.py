"""What a dataset is made of: requests, alone or as the turns of a conversation."""

from __future__ import annotations

import msgspec

Messages = list[dict[str, object]]


class Sample(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        prompt: a text, or the messages of a chat.
        num_prompt_tokens: as the client counts them, 0 if it cannot; what the server counts takes precedence.
        max_tokens: output tokens to ask for.
    """

    prompt: str | Messages
    num_prompt_tokens: int
    max_tokens: int


Conversation = tuple[Sample, ...]
"""Requests that are sent one after the other, each with the answers to those before it."""
