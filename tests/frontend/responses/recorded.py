"""Reading the recorded events of a response."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]
# Type of an item -> what its text is called: in the item, in the deltas and in the event of the end.
_KINDS = {
    "message": ("text", "response.output_text"),
    "reasoning": ("text", "response.reasoning_text"),
    "function_call": ("arguments", "response.function_call_arguments"),
}


def events(text: str) -> list[Json]:
    """The events of a stream, each named by the type of its data and numbered; comments are left out."""
    found: list[Json] = []
    assert text.endswith("\n\n")
    for block in text.removesuffix("\n\n").split("\n\n"):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(found)
        found.append(event)
    return found


def response_of(found: list[Json]) -> Json:
    """The response that the last event holds, which the events before it must add up to, in their order."""
    created, in_progress, *rest, last = found
    assert (created["type"], in_progress["type"]) == ("response.created", "response.in_progress")
    response: Json = last["response"]
    assert created["response"] == in_progress["response"]
    assert last["type"] == f"response.{response['status']}"
    for key in ("output", "status", "usage", "completed_at", "incomplete_details"):
        created["response"][key] = response[key]
    assert created["response"] == response
    items = iter(rest)
    assert [_item_of(items, i) for i in range(len(response["output"]))] == response["output"]
    assert list(items) == []
    return response


def _item_of(rest: Any, index: int) -> Json:
    """The item that the next events make."""
    added = next(rest)
    assert (added["type"], added["output_index"]) == ("response.output_item.added", index)
    item: Json = added["item"]
    assert item["status"] == "in_progress"
    field, name = _KINDS[item["type"]]
    place = {"item_id": item["id"], "output_index": index}
    if item["type"] != "function_call":
        assert item["content"] == []
        place["content_index"] = 0
        opened = next(rest)
        assert opened["type"] == "response.content_part.added"
        assert opened["part"]["text"] == ""
    deltas, logprobs = [], []
    while (event := next(rest))["type"] == f"{name}.delta":
        assert event.items() >= place.items()
        deltas.append(event["delta"])
        logprobs += event.get("logprobs", [])
    assert event["type"] == f"{name}.done"
    assert event.items() >= place.items()
    assert event[field] == "".join(deltas)
    assert event.get("logprobs", []) == logprobs
    done = next(rest)
    if item["type"] != "function_call":
        assert done["type"] == "response.content_part.done"
        assert done.items() >= place.items()
        assert done["part"]["text"] == event["text"]
        assert done["part"].get("logprobs", []) == logprobs
        parts, done = [done["part"]], next(rest)
        assert done["item"]["content"] == parts
    assert (done["type"], done["output_index"]) == ("response.output_item.done", index)
    finished: Json = done["item"]
    assert finished["id"] == item["id"]
    return finished
