"""What is typed is a message or an order; what was said is what requests have."""

from __future__ import annotations

import json

import pytest

from splitserve.client.chat.conversation import Conversation, Line, Order, read_line


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (" hello \n", Line(None, "hello")),
        ("/system  be brief ", Line(Order.SYSTEM, "be brief")),
        ("/reset", Line(Order.RESET, "")),
        ("/save a b.json", Line(Order.SAVE, "a b.json")),
        ("/quit", Line(Order.EXIT, "")),
        ("/sytem x", Line(Order.UNKNOWN, "/sytem")),
        ("//etc is a folder", Line(None, "/etc is a folder")),
    ],
)
def test_words_with_a_slash_are_orders(typed: str, line: Line) -> None:
    assert read_line(typed) == line


def test_the_messages_are_those_that_were_said() -> None:
    conversation = Conversation("be brief")
    conversation.ask("one")
    conversation.answer("1")
    conversation.ask("two")
    assert [(each.role, each.content) for each in conversation.messages()] == [
        ("system", "be brief"),
        ("user", "one"),
        ("assistant", "1"),
        ("user", "two"),
    ]
    conversation.answer("")
    assert len(conversation.messages()) == 3, "a question without an answer is taken back"
    assert json.loads(conversation.to_json())[1] == {"role": "user", "content": "one"}
    conversation.reset()
    assert [each.role for each in conversation.messages()] == ["system"]
