"""Fields of the Messages API that are not served: what changes the answer gets 400, the rest is ignored."""

from __future__ import annotations

from typing import Final

from splitserve.frontend.anthropic.schema.request import MessagesRequest
from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.openai.schema.unsupported import REFUSED, Accepted, known_beside

_KEEPS_ALL: Final = {"type": "clear_thinking_20251015", "keep": "all"}
_OWN: Final[dict[str, Accepted]] = {
    "compaction": Accepted(),
    "container": Accepted(),
    "context_management": Accepted({}, {"edits": []}, {"edits": [_KEEPS_ALL]}),
    "mcp_servers": Accepted([]),
    "output_format": Accepted(),
    "speed": Accepted("standard"),
    "thread": Accepted(),
}
# Under the names that a chat takes or refuses nothing may pass unseen either.
_OTHERS: Final[dict[str, Accepted]] = {name: Accepted() for name in ChatRequest.__struct_fields__} | REFUSED
REFUSED_MESSAGES: Final[dict[str, Accepted]] = {
    name: accepted
    for name, accepted in (_OTHERS | _OWN).items()
    if name not in MessagesRequest.__struct_fields__
}

_IGNORED: Final = frozenset(
    [
        "inference_geo",
        # Who pays, what to try after a refusal, and what is reported of the cache.
        *("billing_policy", "fallbacks", "fallback_credit_token", "diagnostics"),
        # What comes with input that is refused by its type, or says where text comes from.
        *(f"messages[].content[].{name}" for name in ("source", "title", "context", "citations", "caller")),
        *(f"messages[].content[].content[].{name}" for name in ("source", "title", "context", "citations")),
        "system[].citations",
    ]
)
_known_to_all = known_beside(REFUSED_MESSAGES)


def is_known(pattern: str, value: object) -> bool:
    """Tell whether a field without a place in the body's type is nevertheless known."""
    return pattern in _IGNORED or _known_to_all(pattern, value)


def is_known_to_count(pattern: str, value: object) -> bool:
    """Tell the same of a body whose tokens are counted: it may be that of a message."""
    return pattern in MessagesRequest.__struct_fields__ or is_known(pattern, value)
