"""What is kept of responses, as their routes show it: the items of the input, a page of them, a deletion."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from splitserve.frontend.responses.schema.items import ItemStatus
from splitserve.frontend.responses.schema.response import CompactionItem, FunctionCallItem, ReasoningItem

MAX_PAGE: Final = 100
DEFAULT_PAGE: Final = 20
# Of an event.
MAX_NUMBER: Final = 2**31 - 1


class KeptInputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_text"):
    """Text that the model was given."""

    text: str


class KeptOutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """Text of an earlier answer; its logprobs are not kept."""

    text: str
    annotations: list[Any] = msgspec.field(default_factory=list)


class KeptRefusal(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    """An earlier refusal."""

    refusal: str


KeptPart = KeptInputText | KeptOutputText | KeptRefusal


class KeptMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message; a text is one part."""

    id: str
    role: Literal["user", "assistant", "system", "developer"]
    content: list[KeptPart]
    status: ItemStatus = "completed"


class KeptCallOutput(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call_output"):
    """What a function returned."""

    id: str
    call_id: str
    output: str | list[KeptPart]
    status: ItemStatus = "completed"


KeptItem = KeptMessage | ReasoningItem | FunctionCallItem | KeptCallOutput | CompactionItem


class ItemPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the input's items; after the last one there are more if has_more says so."""

    data: list[KeptItem]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response that is no longer kept."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True
