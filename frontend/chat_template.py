"""Chat messages to token ids: renders the checkpoint's jinja2 template as transformers does, within limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from frontend.tokenizer import Tokenizer

JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
Message = Mapping[str, JsonValue]


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
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: Sequence[Mapping[str, JsonValue]] | None = None
    documents: Sequence[Mapping[str, JsonValue]] | None = None
    template_name: str = ""
    variables: Mapping[str, JsonValue] | None = None


class RenderedChat(NamedTuple):
    """A rendered conversation: the text for people, the ids for the model."""

    text: str
    token_ids: list[int]


class ChatTemplate:
    """The chat templates of one checkpoint; safe to call from several threads."""

    def render(
        self,
        messages: Sequence[Message],
        options: ChatOptions | None = None,
        *,
        max_model_len: int | None = None,
    ) -> RenderedChat:
        """Render messages and encode them; control tokens inside message texts are encoded as plain text.

        Raises:
            InvalidRequestError: the template refuses the messages (its own words are quoted), fails on them, or
                renders more than the caps of size and time allow.
            ContextLengthError: the text cannot fit max_model_len tokens.
        """
        raise NotImplementedError

    async def render_async(
        self,
        messages: Sequence[Message],
        options: ChatOptions | None = None,
        *,
        max_model_len: int | None = None,
    ) -> RenderedChat:
        """Render in a thread, so that no template and no long text holds up the event loop. Raises as render()."""
        raise NotImplementedError


def load_chat_template(directory: str, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Load the templates of a checkpoint directory, None if it has none.

    chat_template.jinja goes before tokenizer_config.json; additional_chat_templates/NAME.jinja add named ones.

    Raises:
        ModelLoadError: a template file cannot be read or compiled.
    """
    raise NotImplementedError
