"""Chat messages to token ids by the checkpoint's template; text of users never becomes a control token."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from splitserve.engine_core.checkpoint.files import read_json, read_text
from splitserve.engine_core.errors import ContextLengthError, InvalidRequestError
from splitserve.frontend.text.chat.control_tokens import MARK, JsonValue, TextMarker
from splitserve.frontend.text.chat.messages import Message
from splitserve.frontend.text.chat.probes import TemplateWishes, find_wishes
from splitserve.frontend.text.chat.template_messages import prepare_messages
from splitserve.frontend.text.chat.template_process import RenderLimits, TemplateTooLargeError
from splitserve.frontend.text.chat.template_renderer import Render, TemplateRenderer
from splitserve.frontend.text.tokenizer import MAX_BYTES_PER_TOKEN, Tokenizer

__all__ = ["ChatOptions", "ChatTemplate", "JsonValue", "Message", "RenderedChat", "load_chat_template"]

MAX_OUTPUT_CHARS = 16 * 2**20
_TAG = "\ufdd2 "
_PROBE_TOOL: JsonValue = {
    "type": "function",
    "function": {"name": "xq7_tool", "description": "", "parameters": {"type": "object", "properties": {}}},
}
_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")


@dataclass(slots=True, frozen=True, kw_only=True)
class ChatOptions:
    """What a caller may choose about rendering.

    Attributes:
        add_generation_prompt: end with the opening of the assistant's turn.
        continue_final_message: leave the last message open, so that the model goes on with it.
        tools: JSON schemas of functions, passed to the template.
        documents: passed to the template.
        template_name: which of several named templates; "" picks tool_use when there are tools, else default.
        variables: further template variables (e.g. enable_thinking); cannot override those above.

    Raises:
        InvalidRequestError: variables or tools are of another type, or a variable cannot be set.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: Sequence[Mapping[str, JsonValue]] | None = None
    documents: Sequence[Mapping[str, JsonValue]] | None = None
    template_name: str = ""
    variables: Mapping[str, JsonValue] | None = None

    def __post_init__(self) -> None:
        """Check what a script may get wrong."""
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


_DEFAULT_OPTIONS = ChatOptions()


class RenderedChat(NamedTuple):
    """A rendered conversation: the text for people, the ids for the model."""

    text: str
    token_ids: list[int]


class ChatTemplate:
    """The chat templates of one checkpoint, and the process that renders them; for several threads.

    Attributes:
        sources: the templates' texts by name.
    """

    def __init__(
        self, sources: Mapping[str, str], tokenizer: Tokenizer, limits: RenderLimits | None = None
    ) -> None:
        """Compile templates by name; "default" and "tool_use" are the usual names.

        Raises:
            ModelLoadError: one of them is no jinja2 template, or the process cannot be started.
        """
        self.sources = dict(sources)
        self._tokenizer = tokenizer
        self._renderer = TemplateRenderer(sources, limits)
        named = ((name, _NamedTemplate(name, source, tokenizer)) for name, source in sources.items())
        self._templates = dict(named)
        self._renderer.submit(self._probe).result()

    @property
    def names(self) -> list[str]:
        """Names of the templates."""
        return list(self._templates)

    @property
    def renderer_pid(self) -> int:
        """Id of the process that renders, 0 if there is none now."""
        return self._renderer.pid

    def render(
        self,
        messages: Sequence[Message],
        options: ChatOptions | None = None,
        *,
        max_model_len: int | None = None,
    ) -> RenderedChat:
        """Render messages and encode them; control tokens inside message texts are encoded as plain text.

        Raises:
            InvalidRequestError: the template refuses the messages (in its own words), fails on them, or
                takes more memory or time or renders more than the limits allow.
            ContextLengthError: the text cannot fit max_model_len tokens.
            OverloadedError: too many conversations wait.
            EngineUnavailableError: the process that renders cannot be started again, or this is closed.
        """
        return self._finish(self._submit(messages, options, max_model_len).result())

    async def render_async(
        self,
        messages: Sequence[Message],
        options: ChatOptions | None = None,
        *,
        max_model_len: int | None = None,
    ) -> RenderedChat:
        """Render without holding up the event loop. Raises as render()."""
        rendered = await asyncio.wrap_future(self._submit(messages, options, max_model_len))
        if isinstance(rendered, RenderedChat):
            return rendered
        return await asyncio.to_thread(self._encode, rendered)

    def close(self) -> None:
        """End the process; nothing can be rendered afterwards. Also done when this is dropped."""
        self._renderer.close()

    def _submit(
        self, messages: Sequence[Message], options: ChatOptions | None, max_model_len: int | None
    ) -> Future[RenderedChat | str]:
        options = options or _DEFAULT_OPTIONS
        template = self._choose(options)

        def job(render: Render) -> RenderedChat | str:
            text = _render_within(template, render, (messages, options), max_model_len)
            # A short text is encoded before another thread had its turn; a long one would hold up others.
            return self._encode(text) if len(text) < self._tokenizer.max_chars_at_once else text

        return self._renderer.submit(job)

    def _finish(self, rendered: RenderedChat | str) -> RenderedChat:
        return self._encode(rendered) if isinstance(rendered, str) else rendered

    def _encode(self, text: str) -> RenderedChat:
        return RenderedChat(text.replace(MARK, ""), self._tokenizer.encode_marked(text))

    def _probe(self, render: Render) -> None:
        for template in self._templates.values():
            template.probe(render)

    def _choose(self, options: ChatOptions) -> _NamedTemplate:
        name = options.template_name or (
            "tool_use" if options.tools and "tool_use" in self._templates else "default"
        )
        template = self._templates.get(name)
        if template is None and not options.template_name and len(self._templates) == 1:
            return next(iter(self._templates.values()))
        if template is None:
            raise InvalidRequestError(
                f"the model has no chat template named {name[:100]!r}, only {', '.join(self._templates)}",
                "chat_template",
            )
        return template


def _render_within(
    template: _NamedTemplate,
    render: Render,
    conversation: tuple[Sequence[Message], ChatOptions],
    max_model_len: int | None,
) -> str:
    max_chars = MAX_OUTPUT_CHARS if max_model_len is None else max_model_len * MAX_BYTES_PER_TOKEN
    try:
        return template.render(render, *conversation, max_chars)
    except TemplateTooLargeError:
        if max_model_len is None:
            message = f"the rendered messages are over the limit of {max_chars} characters"
            raise InvalidRequestError(message, "messages") from None
        raise ContextLengthError.of_text(
            max_model_len, f"more than {max_chars} characters", f"{max_chars}", "messages"
        ) from None
    except RecursionError:
        raise InvalidRequestError("the messages are nested too deeply", "messages") from None


class _NamedTemplate:
    """One template with what was learnt about it."""

    def __init__(self, name: str, source: str, tokenizer: Tokenizer) -> None:
        self._name = name
        self._constants: dict[str, JsonValue] = dict(tokenizer.named_tokens)
        special = tokenizer.control_tokens
        # A token like <tool_call> is often not special, yet it is structure when the template writes it.
        structure = [text for text in tokenizer.added_tokens if text in source and not text.isspace()]
        self._marker = TextMarker([*special, *structure])
        # What the assistant said may hold such structure: templates look for </think> in it.
        self._assistant_marker = TextMarker(special)
        self._wishes = TemplateWishes()

    def probe(self, render: Render) -> None:
        """Find out what the template wants; once, before it renders for anyone."""

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
    """Append a tag to the last message's text, by which the place to cut is found; return that text."""
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


def load_chat_template(directory: str | Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Load the templates of a checkpoint directory, None if it has none.

    chat_template.jinja goes before tokenizer_config.json; additional_chat_templates/NAME.jinja add named
    ones.

    Raises:
        ModelLoadError: a template file cannot be read or compiled.
    """
    directory = Path(directory)
    sources = _templates_of(tokenizer.config.get("chat_template"))
    if not sources:
        sources = _templates_of(read_json(directory / "chat_template.json").get("chat_template"))
    if (text := read_text(directory / "chat_template.jinja")) is not None:
        sources["default"] = text
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        sources[path.stem] = read_text(path) or ""
    return ChatTemplate(sources, tokenizer) if sources else None


def _templates_of(value: object) -> dict[str, str]:
    """Read "chat_template" of tokenizer_config.json: a string, or a list of {"name", "template"}."""
    if isinstance(value, str):
        return {"default": value}
    if not isinstance(value, list):
        return {}
    pairs = [(entry.get("name"), entry.get("template")) for entry in value if isinstance(entry, dict)]
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
