"""Prompts and answers in turns, in the terminal; or one of each, for a script."""

from __future__ import annotations

import sys
from pathlib import Path

from splitserve.client.chat.answering import show_answer
from splitserve.client.chat.conversation import HELP, Conversation, Line, Order, read_line
from splitserve.client.chat.prompts import read_prompts
from splitserve.client.chat.request_fields import request_fields
from splitserve.client.chat.screen import visible
from splitserve.client.chat.settings import ChatSettings, PromptSettings
from splitserve.client.http.address import Address
from splitserve.client.http.api import Api
from splitserve.client.http.errors import ApiError
from splitserve.client.sampling_fields import SamplingSettings


async def complete(
    address: Address, settings: PromptSettings, sampling: SamplingSettings, prompt: str | None
) -> None:
    """Go on with one text, or with all that are typed; see chat()."""
    async with Api(address) as api:
        fields = await request_fields(api, settings, sampling, "max_tokens")
        path = api.path("/completions")
        if prompt is not None:
            await show_answer(api, path, {**fields, "prompt": prompt}, can_stop=False)
            return
        async for text in read_prompts("complete", keeps_history=settings.history):
            try:
                await show_answer(api, path, {**fields, "prompt": text}, can_stop=True)
            except ApiError as error:
                _say(visible(str(error)))


async def chat(
    address: Address, settings: ChatSettings, sampling: SamplingSettings, prompt: str | None
) -> None:
    """Answer one prompt, or all that are typed.

    Args:
        address: of the server.
        settings: of the command.
        sampling: of the answers.
        prompt: the only one, None to ask in the terminal.

    Raises:
        ApiError: the server does not answer, or refuses the only prompt.
    """
    async with Api(address) as api:
        fields = await request_fields(api, settings, sampling, "max_completion_tokens")
        conversation = Conversation(settings.system_prompt)
        if prompt is not None:
            conversation.ask(prompt)
            body = {**fields, "messages": conversation.messages()}
            await show_answer(api, api.path("/chat/completions"), body, can_stop=False)
            return
        await Talk(api, conversation, fields).run(keeps_history=settings.history)


class Talk:
    """A conversation in the terminal.

    Args:
        api: of the server.
        conversation: what was said so far.
        fields: of every request.
    """

    def __init__(self, api: Api, conversation: Conversation, fields: dict[str, object]) -> None:
        self._api = api
        self._conversation = conversation
        self._fields = fields

    async def run(self, *, keeps_history: bool) -> None:
        """Ask and answer until the user leaves."""
        async for text in read_prompts("chat", keeps_history=keeps_history):
            line = read_line(text)
            if line.order is Order.EXIT:
                return
            if line.order is not None:
                _say(self.obey(line))
            elif line.text:
                await self._answer(line.text)

    async def _answer(self, text: str) -> None:
        self._conversation.ask(text)
        said = ""
        try:
            path = self._api.path("/chat/completions")
            body = {**self._fields, "messages": self._conversation.messages()}
            said = await show_answer(self._api, path, body, can_stop=True)
        except ApiError as error:
            _say(visible(str(error)))
        self._conversation.answer(said)

    def obey(self, line: Line) -> str:
        """Do what an order says; return what to tell of it."""
        conversation = self._conversation
        match line.order:
            case Order.SYSTEM:
                conversation.system = line.text or conversation.system
                return f"system prompt: {conversation.system or 'none'}"
            case Order.RESET:
                conversation.reset()
                return "a new conversation"
            case Order.SAVE:
                return _save(conversation, line.text)
            case Order.HELP:
                return HELP
        return f"there is no {line.text}, /help shows what there is"


def _save(conversation: Conversation, name: str) -> str:
    if not name:
        return "/save needs the name of a file"
    path = Path(name).expanduser()
    try:
        path.write_bytes(conversation.to_json())
    except OSError as error:
        return f"cannot write {path}: {error.strerror}"
    return f"written to {path}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
