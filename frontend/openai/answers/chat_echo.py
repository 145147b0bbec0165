"""Whose turn does a chat answer belong to, and what of it was there before?"""

from __future__ import annotations

from splitserve.frontend.openai.prompts import PART_FIELDS
from splitserve.frontend.openai.schema.chat import ChatMessage, ChatRequest
from splitserve.frontend.text.chat.template import ChatOptions


def answer_role(body: ChatRequest, options: ChatOptions) -> str:
    """Return the role of the answer: without a turn of its own it belongs to the last message's."""
    return "assistant" if options.add_generation_prompt else body.messages[-1].role


def echoed_text(body: ChatRequest, role: str) -> str:
    """Return the text that `echo` puts before the answer: the last message's, if it goes on with that."""
    last = body.messages[-1]
    return _text(last) if body.echo and last.role == role else ""


def _text(message: ChatMessage) -> str:
    content = message.refusal if message.content is None else message.content
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = [getattr(part, PART_FIELDS[part.type]) for part in content]
    return "\n".join(texts)
