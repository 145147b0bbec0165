"""Reading a recorded stream of the Messages API."""

from __future__ import annotations

import json
from typing import Any


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each named by the type of its data; pings are left out."""
    found = []
    assert text.endswith("\n\n")
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] != "ping":
            found.append(event)
    return found


def message_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole message that the events of a stream make, whose order must be right."""
    first, *rest, delta, stop = found
    assert (first["type"], delta["type"], stop) == (
        "message_start",
        "message_delta",
        {"type": "message_stop"},
    )
    message: dict[str, Any] = first["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    is_open = False
    for event in rest:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(message["content"])
            is_open, partial = True, ""
            message["content"].append(event["content_block"])
            continue
        assert is_open
        assert event["index"] == len(message["content"]) - 1
        block = message["content"][-1]
        if event["type"] == "content_block_stop":
            is_open = False
            if block["type"] == "tool_use":
                block["input"] = json.loads(partial or "{}")
            continue
        assert event["type"] == "content_block_delta"
        match event["delta"]:
            case {"type": "text_delta", "text": text}:
                block["text"] += text
            case {"type": "thinking_delta", "thinking": text}:
                block["thinking"] += text
            case {"type": "signature_delta", "signature": text}:
                block["signature"] += text
            case {"type": "input_json_delta", "partial_json": text}:
                partial += text
            case other:
                raise AssertionError(other)
    assert not is_open
    return message | delta["delta"] | {"usage": delta["usage"]}
