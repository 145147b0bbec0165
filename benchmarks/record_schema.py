"""The JSON schema that answers are held to where the cost of one is measured."""

from __future__ import annotations


def list_of_records(name: str, min_items: int) -> dict[str, object]:
    """Return the schema of a list of records.

    Args:
        name: tells it from others, in a key and in a value.
        min_items: fewest records.
    """
    record = {
        "type": "object",
        "properties": {
            f"id_{name}": {"type": "integer"},
            "title": {"type": "string"},
            "tags": {"type": "array", "items": {"enum": ["red", "green", name]}},
            "score": {"type": ["number", "null"]},
        },
        "required": [f"id_{name}", "title", "tags", "score"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": record, "minItems": min_items}
