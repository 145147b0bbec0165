"""Which role does a chat response have, and which text does `echo` put before it?"""

from __future__ import annotations

from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.text.chat.options import ChatOptions


def answer_role(body: ChatRequest, options: ChatOptions) -> str:
    """Return the role of the response: the last message's if no new turn is opened."""
    return "assistant" if options.add_generation_prompt else body.messages[-1].role


def echoed_text(body: ChatRequest, role: str) -> str:
    """Return the text that `echo` puts before the response: the last message's, if it is continued."""
    last = body.messages[-1]
    return "\n".join(last.texts()) if body.echo and last.role == role else ""
