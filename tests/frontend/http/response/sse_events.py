"""Reading a recorded event stream."""

from __future__ import annotations

import json


def events(text: str) -> list[dict]:
    """The JSON events of a stream, which must end with [DONE] and hold nothing but events and comments."""
    assert text.endswith("data: [DONE]\n\n"), text[-200:]
    found = []
    for block in text.removesuffix("\n\n").split("\n\n")[:-1]:
        if not block.startswith(":"):
            assert block.startswith("data: "), block
            found.append(json.loads(block.removeprefix("data: ")))
    return found


def joined(chunks: list[dict], index: int = 0) -> str:
    """The text of one choice, of completion or chat chunks."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)
