"""The items of a request and its response → the items that are kept → those of the next request.

Every item has an id that no other of the conversation has: the one it came with, or a new one. What the
template does not show is not kept: logprobs, the phase of a message, encrypted reasoning.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

import msgspec

from splitserve.frontend.responses.schema.items import InputItem, InputPart
from splitserve.frontend.responses.schema.kept_bodies import (
    KeptCallOutput,
    KeptInputText,
    KeptItem,
    KeptMessage,
    KeptOutputText,
    KeptPart,
    KeptRefusal,
)
from splitserve.frontend.responses.schema.response import (
    CompactionItem,
    FunctionCallItem,
    OutputItem,
    OutputMessage,
    ReasoningItem,
    ReasoningTextPart,
)

_ID_BYTES = 16
_MAX_ID_CHARS = 128
_PREFIXES = {"function_call": "fc", "function_call_output": "fco", "reasoning": "rs", "compaction": "cmp"}
_decode = msgspec.json.Decoder(list[KeptItem]).decode
_encode = msgspec.json.Encoder().encode


def decode_items(data: bytes) -> list[KeptItem]:
    """Return the items of a record.

    Raises:
        msgspec.ValidationError: they are of another version.
    """
    return _decode(data)


def all_items(given: str | Sequence[InputItem], earlier: Sequence[KeptItem]) -> bytes:
    """Return all of a response's input as a record has it; arguments as kept_items()."""
    return _encode(kept_items(given, earlier))


def kept_items(given: str | Sequence[InputItem], earlier: Sequence[KeptItem]) -> list[KeptItem]:
    """Return all of a response's input as it is kept.

    Args:
        given: input of the request, checked as frontend.responses.history does.
        earlier: the items before it.
    """
    if isinstance(given, str):
        given = [InputItem(role="user", content=given)]
    taken = {item.id for item in earlier}
    return [*earlier, *(_kept(item, _unique_id(item, taken)) for item in given)]


def output_items(output: Iterable[OutputItem]) -> list[KeptItem]:
    """Return the output of a response as the next request's input holds it."""
    return [_as_input(item) for item in output]


def request_items(items: Sequence[KeptItem]) -> list[InputItem]:
    """Return items as a request has them."""
    return msgspec.convert(msgspec.to_builtins(items), list[InputItem])


def _unique_id(item: InputItem, taken: set[str]) -> str:
    found = item.id
    if not found or len(found) > _MAX_ID_CHARS or found in taken:
        found = f"{_PREFIXES.get(item.type or '', 'msg')}_{secrets.token_hex(_ID_BYTES)}"
    taken.add(found)
    return found


def _kept(item: InputItem, item_id: str) -> KeptItem:
    status = item.status or "completed"
    if item.type == "function_call":
        return FunctionCallItem(
            id=item_id,
            call_id=item.call_id or "",
            name=item.name or "",
            arguments=item.arguments or "",
            status=status,
        )
    if item.type == "function_call_output":
        output = item.output or ""
        parts = output if isinstance(output, str) else [_part(part, "user") for part in output]
        return KeptCallOutput(id=item_id, call_id=item.call_id or "", output=parts, status=status)
    if item.type == "reasoning":
        return _kept_reasoning(item, item_id)
    if item.type == "compaction":
        return CompactionItem(id=item_id, encrypted_content=item.encrypted_content or "")
    role, content = item.role or "user", item.content or ""
    if isinstance(content, str):
        content = [InputPart(type="text", text=content)]
    kept = [_part(part, role) for part in content]
    return KeptMessage(id=item_id, role=role, content=kept, status=status)


def _kept_reasoning(item: InputItem, item_id: str) -> ReasoningItem:
    content = item.content or []
    texts = [content] if isinstance(content, str) else [part.text or "" for part in content]
    return ReasoningItem(
        id=item_id,
        status=item.status or "completed",
        content=[ReasoningTextPart(text=text) for text in texts],
        summary=[{"type": "summary_text", "text": part.text} for part in item.summary or ()],
    )


def _part(part: InputPart, role: str) -> KeptPart:
    if part.type == "refusal":
        return KeptRefusal(refusal=part.refusal or "")
    if part.type == "output_text" or role == "assistant":
        return KeptOutputText(text=part.text or "", annotations=[*(part.annotations or ())])
    return KeptInputText(text=part.text or "")


def _as_input(item: OutputItem) -> KeptItem:
    if not isinstance(item, OutputMessage):
        return item
    content: list[KeptPart] = [
        KeptOutputText(text=part.text, annotations=part.annotations) for part in item.content
    ]
    return KeptMessage(id=item.id, role=item.role, content=content, status=item.status)
