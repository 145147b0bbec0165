"""Fields of the Responses API that are not served: what changes the answer gets 400, the rest is ignored."""

from __future__ import annotations

from typing import Final

from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.openai.schema.unsupported import REFUSED, Accepted, known_beside
from splitserve.frontend.responses.schema.request import ResponsesRequest

_OWN: Final[dict[str, Accepted]] = {
    "conversation": Accepted(),
    "prompt": Accepted(),
    "context_management": Accepted([]),
    "moderation": Accepted(),
    "n": Accepted(1),
}
# Under the names that a chat takes or refuses nothing may pass unseen either.
_OTHERS: Final[dict[str, Accepted]] = {name: Accepted() for name in ChatRequest.__struct_fields__} | REFUSED
REFUSED_RESPONSES: Final[dict[str, Accepted]] = {
    name: accepted
    for name, accepted in (_OTHERS | _OWN).items()
    if name not in ResponsesRequest.__struct_fields__
}

_IGNORED: Final = frozenset(
    [
        # What comes with items, parts and tools that are refused by their type.
        *(f"input[].{place}[].{name}" for place in ("content", "output") for name in ("detail", "file_id")),
        *(f"input[].{place}[].image_url" for place in ("content", "output")),
        *(f"input[].content[].{name}" for name in ("file_data", "file_url", "filename", "input_audio")),
    ]
)
_known_to_all = known_beside(REFUSED_RESPONSES)


def is_known(pattern: str, value: object) -> bool:
    """Tell whether a field without a place in the body's type is nevertheless known."""
    return pattern in _IGNORED or _known_to_all(pattern, value)
