"""Those parts of OpenAI's answers that the commands read; everything else in them is ignored."""

from __future__ import annotations

import msgspec


class ErrorBody(msgspec.Struct, frozen=True):
    """The error of OpenAI's error object."""

    message: str = ""
    code: str | int | None = None


class Usage(msgspec.Struct, frozen=True, gc=False):
    """How many tokens a request had."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0


class Delta(msgspec.Struct, frozen=True, gc=False):
    """What a chunk of a chat adds; servers differ in what they call reasoning."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @property
    def thought(self) -> str:
        """Reasoning that it adds."""
        return self.reasoning_content or self.reasoning or ""


class Choice(msgspec.Struct, frozen=True, gc=False):
    """One choice of a chunk, of a completion (`text`) or a chat (`delta`)."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """One event of a streamed answer."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: ErrorBody | None = None


class ModelCard(msgspec.Struct, frozen=True):
    """One model of a server's list; `root` is the name or path that it was started with, where told."""

    id: str
    root: str | None = None


class ModelList(msgspec.Struct, frozen=True):
    """The models of a server."""

    data: list[ModelCard] = []
