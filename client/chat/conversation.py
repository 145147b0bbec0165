"""The messages of a conversation, and the words that begin with a slash. No I/O."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

HELP = """\
/system TEXT  set the system prompt; without TEXT show it
/reset        begin anew, with the same system prompt
/save FILE    write the messages as JSON
/help         show this
/exit         leave, as does Ctrl-D
Enter sends, Alt-Enter begins a new line, Ctrl-C stops an answer."""


class Message(msgspec.Struct, frozen=True):
    """One message, as a request takes it."""

    role: str
    content: str


class Conversation:
    """What was said so far.

    Attributes:
        system: the system prompt, "" for none.

    Args:
        system: the system prompt.
    """

    def __init__(self, system: str = "") -> None:
        self.system = system
        self._said: list[Message] = []

    def messages(self) -> list[Message]:
        """Return all messages, the system prompt first."""
        system = [Message("system", self.system)] if self.system else []
        return [*system, *self._said]

    def ask(self, text: str) -> None:
        """Add a question."""
        self._said.append(Message("user", text))

    def answer(self, text: str) -> None:
        """Add the answer, or as much of it as came; a question without any is taken back."""
        if text:
            self._said.append(Message("assistant", text))
        else:
            self._said.pop()

    def reset(self) -> None:
        """Forget all but the system prompt."""
        self._said.clear()

    def to_json(self) -> bytes:
        """Return the messages as a JSON list."""
        return msgspec.json.format(msgspec.json.encode(self.messages())) + b"\n"


class Order(Enum):
    """What a word with a slash asks for."""

    SYSTEM = "/system"
    RESET = "/reset"
    SAVE = "/save"
    HELP = "/help"
    EXIT = "/exit"
    UNKNOWN = "/"


class Line(NamedTuple):
    """What was typed: an order and what follows it, or a message (`order` is None)."""

    order: Order | None
    text: str


_ORDERS = {order.value: order for order in Order if order is not Order.UNKNOWN} | {
    "/quit": Order.EXIT,
    "/?": Order.HELP,
}


def read_line(text: str) -> Line:
    """Read what was typed; two slashes begin a message with one."""
    text = text.strip()
    if text.startswith("//"):
        return Line(None, text[1:])
    if not text.startswith("/"):
        return Line(None, text)
    word, _, rest = text.partition(" ")
    order = _ORDERS.get(word, Order.UNKNOWN)
    return Line(order, word if order is Order.UNKNOWN else rest.strip())
