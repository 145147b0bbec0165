"""One template of a checkpoint: what input it expects, and where does a continued message end?"""

from __future__ import annotations

from collections.abc import Sequence

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.text.chat.control_tokens import JsonValue, TextMarker
from splitserve.frontend.text.chat.messages import Message
from splitserve.frontend.text.chat.options import ChatOptions
from splitserve.frontend.text.chat.probes import PROBE_TOOL_NAME, TemplateWishes, find_wishes
from splitserve.frontend.text.chat.template_messages import prepare_messages
from splitserve.frontend.text.chat.template_process import TemplateTooLargeError
from splitserve.frontend.text.chat.template_renderer import Render
from splitserve.frontend.text.tokenizer import Tokenizer

MAX_OUTPUT_CHARS = 16 * 2**20
_TAG = "\ufdd2 "
_PROBE_TOOL: JsonValue = {
    "type": "function",
    "function": {
        "name": PROBE_TOOL_NAME,
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    },
}


class NamedTemplate:
    """One template and what probing it has shown."""

    def __init__(self, name: str, source: str, tokenizer: Tokenizer) -> None:
        """Prepare the markers for user text; call probe() before the first render()."""
        self._name = name
        self._constants: dict[str, JsonValue] = dict(tokenizer.named_tokens)
        special = tokenizer.control_tokens
        # A token like <tool_call> is often not special, yet it is structure if the template writes it.
        structure = [text for text in tokenizer.added_tokens if text in source and not text.isspace()]
        self._marker = TextMarker([*special, *structure])
        # The assistant's text may contain such structure: templates look for </think> in it.
        self._assistant_marker = TextMarker(special)
        self._wishes = TemplateWishes()

    @property
    def shows_tools(self) -> bool:
        """Whether it tells the model which tools there are."""
        return self._wishes.shows_tools

    def probe(self, render: Render) -> None:
        """Find out what the template expects; once, before its first real rendering."""

        def render_probe(messages: list[JsonValue]) -> str:
            variables = {**self._constants, "messages": messages, "tools": [_PROBE_TOOL], "documents": None}
            try:
                return render(self._name, {**variables, "add_generation_prompt": False}, MAX_OUTPUT_CHARS)
            except TemplateTooLargeError:
                return ""

        self._wishes = find_wishes(render_probe)

    def render(
        self, render: Render, messages: Sequence[Message], options: ChatOptions, max_chars: int
    ) -> str:
        """Return the text of a conversation, marked where control tokens must not be recognized.

        Raises:
            InvalidRequestError: there is no message, none to continue, or the template refuses or fails.
            TemplateTooLargeError: the text is longer than max_chars.
        """
        prepared = prepare_messages(messages, self._wishes, self._marker, self._assistant_marker)
        final = _tag_final(prepared) if options.continue_final_message else ""
        variables: dict[str, JsonValue] = {
            **self._constants,
            **{name: self._marker.mark_all(value) for name, value in (options.variables or {}).items()},
            "messages": prepared,
            "tools": self._marker.mark_all(options.tools) if options.tools else None,
            "documents": self._marker.mark_all(options.documents) if options.documents else None,
            "add_generation_prompt": options.add_generation_prompt and not options.continue_final_message,
        }
        text = render(self._name, variables, max_chars)
        return _cut_at_tag(text, final) if options.continue_final_message else text


def _tag_final(messages: list[dict[str, JsonValue]]) -> str:
    """Append a tag to the last message's text, which shows where to cut; return that text."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, str):
        messages[-1]["content"] = content + _TAG
        return content
    if isinstance(content, list):
        for part in reversed(content):
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                text = str(part["text"])
                part["text"] = text + _TAG
                return text
    raise InvalidRequestError(
        "continue_final_message needs a last message with text to continue", "continue_final_message"
    )


def _cut_at_tag(text: str, final: str) -> str:
    place = text.rfind(_TAG.strip())
    if place < 0 or final.strip() not in text:
        raise InvalidRequestError(
            "the chat template drops or changes the last message, so it cannot be continued",
            "continue_final_message",
        )
    # A template that trims messages would have trimmed the untagged one too.
    return text[:place] if text.startswith(_TAG, place) else text[:place].rstrip()
