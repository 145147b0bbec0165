"""Whose turn does a chat answer belong to, and what of it was there before?"""

from __future__ import annotations

from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.text.chat.options import ChatOptions


def answer_role(body: ChatRequest, options: ChatOptions) -> str:
    """Return the role of the answer: without a turn of its own it belongs to the last message's."""
    return "assistant" if options.add_generation_prompt else body.messages[-1].role


def echoed_text(body: ChatRequest, role: str) -> str:
    """Return the text that `echo` puts before the answer: the last message's, if it goes on with that."""
    last = body.messages[-1]
    return "\n".join(last.texts()) if body.echo and last.role == role else ""
