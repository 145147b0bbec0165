"""How is a chat template told whether the model is to think, and how hard?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from splitserve.frontend.text.chat.control_tokens import JsonValue

# Those of OpenAI's API; which of them a model knows, its template decides.
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: tuple[ReasoningEffort, ...] = get_args(ReasoningEffort)
# What families of templates call the switch; the others do not look.
_SWITCHES = ("enable_thinking", "thinking")


def thinking_variables(*, thinks: bool) -> dict[str, bool]:
    """Return the template variables that switch reasoning on or off."""
    return dict.fromkeys(_SWITCHES, thinks)


def effort_variables(
    effort: ReasoningEffort | None, given: Mapping[str, JsonValue] | None
) -> Mapping[str, JsonValue] | None:
    """Return the template variables of a request that names an effort.

    Args:
        effort: "none" switches reasoning off, all others switch it on; None says nothing.
        given: the request's own variables, which go before what the effort says.
    """
    if effort is None:
        return given
    return {"reasoning_effort": effort, **thinking_variables(thinks=effort != "none"), **(given or {})}
