"""The request and the answer of POST /v1/responses/compact."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from splitserve.frontend.openai.schema.fields import (
    MAX_MODEL_CHARS,
    MAX_TIMEOUT_S,
    CacheSalt,
    Priority,
    ranged,
)
from splitserve.frontend.openai.schema.unsupported import Accepted
from splitserve.frontend.responses.schema.items import InputItem
from splitserve.frontend.responses.schema.kept_bodies import KeptMessage
from splitserve.frontend.responses.schema.response import CompactionItem, ResponseUsage
from splitserve.frontend.text.chat.messages import MAX_MESSAGES

REFUSED_COMPACTION: Final[dict[str, Accepted]] = {
    "conversation": Accepted(),
    "prompt": Accepted(),
    "stream": Accepted(False),
    "background": Accepted(False),
    "store": Accepted(False),
}


class CompactionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation to be summarized: input, what precedes it, or both."""

    model: Annotated[str, Meta(max_length=MAX_MODEL_CHARS, description="It has no default here.")]
    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    instructions: Annotated[str | None, Meta(description="A system message before the input.")] = None
    previous_response_id: (
        Annotated[str, Meta(max_length=128, description="A kept response, whose conversation it is.")] | None
    ) = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None
    timeout: Annotated[
        float | None,
        ranged(0, MAX_TIMEOUT_S, "Seconds after which the engine ends the request with 504.", above=True),
    ] = None


class CompactedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What the next input begins with instead of the conversation."""

    id: str
    created_at: int
    output: list[KeptMessage | CompactionItem]
    usage: ResponseUsage
    object: Literal["response.compaction"] = "response.compaction"
