"""How are answers written that are messages on channels? The tags of gpt-oss's harmony."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Channels(Struct, frozen=True):
    """Messages, each with a header that names a channel and, for a call, who is to get it.

    Attributes:
        start: begins a message, before the role; the prompt has written that of the first.
        channel: before the name of the channel.
        constrain: before the type of the text, which is passed over.
        message: ends the header.
        end: ends a message.
        last: end the last message of an answer: what is said, and a call.
        role: of the model.
        reasoning: channel of reasoning.
        answer: channel of the answer.
        recipient: before the name of who gets a message.
        functions: what the names of functions have before them.
    """

    start: str = "<|start|>"
    channel: str = "<|channel|>"
    constrain: str = "<|constrain|>"
    message: str = "<|message|>"
    end: str = "<|end|>"
    last: tuple[str, ...] = ("<|return|>", "<|call|>")
    role: str = "assistant"
    reasoning: str = "analysis"
    answer: str = "final"
    recipient: str = "to="
    functions: str = "functions."

    @property
    def ends(self) -> tuple[str, ...]:
        """Tags that end a message."""
        return self.end, *self.last

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags."""
        return self.start, self.channel, self.constrain, self.message, *self.ends

    def header(self, channel: str) -> str:
        """Return the header of a message of the model, without what the prompt writes of the first."""
        return f"{self.channel}{channel}{self.message}"


HARMONY: Final = Channels()
