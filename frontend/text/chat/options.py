"""Which options does a caller have for rendering a conversation?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.text.chat.control_tokens import JsonValue

_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")


@dataclass(slots=True, frozen=True, kw_only=True)
class ChatOptions:
    """A caller's options for rendering a conversation.

    Attributes:
        add_generation_prompt: end with the opening of the assistant's turn.
        continue_final_message: leave the last message open, so that the model continues it.
        tools: JSON schemas of functions, passed to the template.
        documents: passed to the template.
        template_name: which of several named templates; "" picks tool_use if there are tools, else default.
        variables: further template variables (e.g. enable_thinking); cannot override those above.

    Raises:
        InvalidRequestError: variables or tools have the wrong type, or a variable cannot be set.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: Sequence[Mapping[str, JsonValue]] | None = None
    documents: Sequence[Mapping[str, JsonValue]] | None = None
    template_name: str = ""
    variables: Mapping[str, JsonValue] | None = None

    def __post_init__(self) -> None:
        """Check the types, which a script may get wrong."""
        _check_variables(self.variables)
        tools: object = self.tools
        if tools is not None and not (
            isinstance(tools, Sequence) and all(isinstance(tool, Mapping) for tool in tools)
        ):
            raise InvalidRequestError(f"tools must be a list of objects, got {type(tools).__name__}", "tools")


def _check_variables(given: object) -> None:
    name = "chat_template_kwargs"
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise InvalidRequestError(
            f"{name} must be an object of template variables, got {type(given).__name__}", name
        )
    for key in given:
        if not isinstance(key, str) or key in _RESERVED or key.startswith("_") or not key.isidentifier():
            raise InvalidRequestError(f"the template variable {str(key)[:100]!r} cannot be set", name)
