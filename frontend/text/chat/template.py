"""Chat messages to token ids with the checkpoint's template; user text never becomes a control token."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from splitserve.engine_core.checkpoint.files import read_json, read_text
from splitserve.engine_core.errors import ContextLengthError, InvalidRequestError
from splitserve.frontend.text.chat.control_tokens import MARK
from splitserve.frontend.text.chat.messages import Message
from splitserve.frontend.text.chat.named_template import MAX_OUTPUT_CHARS, NamedTemplate
from splitserve.frontend.text.chat.options import ChatOptions
from splitserve.frontend.text.chat.template_process import RenderLimits, TemplateTooLargeError
from splitserve.frontend.text.chat.template_renderer import Render, TemplateRenderer
from splitserve.frontend.text.tokenizer import MAX_BYTES_PER_TOKEN, Tokenizer

_DEFAULT_OPTIONS = ChatOptions()


class RenderedChat(NamedTuple):
    """A rendered conversation: text for people, ids for the model."""

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
        """Compile the templates, given by name; "default" and "tool_use" are the usual names.

        Raises:
            ModelLoadError: one of them is not a jinja2 template, or the process cannot be started.
        """
        self.sources = dict(sources)
        self._tokenizer = tokenizer
        self._renderer = TemplateRenderer(sources, limits)
        named = ((name, NamedTemplate(name, source, tokenizer)) for name, source in sources.items())
        self._templates = dict(named)
        self._renderer.submit(self._probe).result()

    @property
    def names(self) -> list[str]:
        """Names of the templates."""
        return list(self._templates)

    @property
    def renderer_pid(self) -> int:
        """Process id of the renderer, 0 if there is none now."""
        return self._renderer.pid

    def shows_tools(self, options: ChatOptions) -> bool:
        """Whether the template that is used for these options tells the model which tools there are.

        Raises:
            InvalidRequestError: there is no template of the name that the options give.
        """
        return self._choose(options).shows_tools

    def render(
        self,
        messages: Sequence[Message],
        options: ChatOptions | None = None,
        *,
        max_model_len: int | None = None,
    ) -> RenderedChat:
        """Render messages and encode them; control tokens inside message texts are encoded as plain text.

        Raises:
            InvalidRequestError: the template refuses the messages (with its own message), fails on them, or
                exceeds the limits on memory, time or output.
            ContextLengthError: the text cannot fit max_model_len tokens.
            OverloadedError: too many conversations are waiting.
            EngineUnavailableError: the rendering process cannot be restarted, or this is closed.
        """
        return self._finish(self._submit(messages, options, max_model_len).result())

    async def render_async(
        self,
        messages: Sequence[Message],
        options: ChatOptions | None = None,
        *,
        max_model_len: int | None = None,
    ) -> RenderedChat:
        """Render without blocking the event loop. Raises as render()."""
        rendered = await asyncio.wrap_future(self._submit(messages, options, max_model_len))
        if isinstance(rendered, RenderedChat):
            return rendered
        return await asyncio.to_thread(self._encode, rendered)

    def close(self) -> None:
        """Stop the process; nothing can be rendered afterwards. Also done when this object is dropped."""
        self._renderer.close()

    def _submit(
        self, messages: Sequence[Message], options: ChatOptions | None, max_model_len: int | None
    ) -> Future[RenderedChat | str]:
        options = options or _DEFAULT_OPTIONS
        template = self._choose(options)

        def job(render: Render) -> RenderedChat | str:
            text = _render_within(template, render, (messages, options), max_model_len)
            # A short text is encoded here, faster than switching threads; a long one would delay others.
            return self._encode(text) if len(text) < self._tokenizer.max_chars_at_once else text

        return self._renderer.submit(job)

    def _finish(self, rendered: RenderedChat | str) -> RenderedChat:
        return self._encode(rendered) if isinstance(rendered, str) else rendered

    def _encode(self, text: str) -> RenderedChat:
        return RenderedChat(text.replace(MARK, ""), self._tokenizer.encode_marked(text))

    def _probe(self, render: Render) -> None:
        for template in self._templates.values():
            template.probe(render)

    def _choose(self, options: ChatOptions) -> NamedTemplate:
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
    template: NamedTemplate,
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


def template_sources(directory: Path, tokenizer: Tokenizer) -> dict[str, str]:
    """Return the templates of a checkpoint directory by name.

    chat_template.jinja goes before all that tokenizer_config.json has; additional_chat_templates/NAME.jinja
    add named ones.

    Raises:
        ModelLoadError: a template file cannot be read.
    """
    sources = _templates_of(tokenizer.config.get("chat_template"))
    if not sources:
        sources = _templates_of(read_json(directory / "chat_template.json").get("chat_template"))
    if (text := read_text(directory / "chat_template.jinja")) is not None:
        sources = {"default": text}
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        sources[path.stem] = read_text(path) or ""
    return sources


def _templates_of(value: object) -> dict[str, str]:
    """Read "chat_template" of tokenizer_config.json: a string, or a list of {"name", "template"}."""
    if isinstance(value, str):
        return {"default": value}
    if not isinstance(value, list):
        return {}
    pairs = [(entry.get("name"), entry.get("template")) for entry in value if isinstance(entry, dict)]
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
