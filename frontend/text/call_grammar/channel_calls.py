"""What may be written as a call that is a message on a channel? The headers and arguments of harmony's calls.

The recipient stands behind the role, or behind the channel. What begins the first message, and its role, are
in the prompt.
"""

from __future__ import annotations

import re
from typing import Final

from splitserve.frontend.text.answers.calls import MAX_CALLS
from splitserve.frontend.text.answers.channel_format import Channels
from splitserve.frontend.text.call_grammar.arguments import json_arguments_rule
from splitserve.frontend.text.call_grammar.demand import CallableTool, CallDemand
from splitserve.frontend.text.call_grammar.lark import Lark, one_of
from splitserve.frontend.text.grammar.lark import regex
from splitserve.frontend.text.grammar.refusal import RefusalError

# On which functions are called.
_CHANNELS: Final = "(analysis|commentary)"
# What the text is.
_WORD: Final = "[a-z]{1,16}"


class ChannelCalls:
    """Writes the rules of the calls of one output, and of the tokens that messages are made of.

    Attributes:
        start, channel, message, end: match the tags of those names.
        ended: matches any tag that ends a message.
        role: matches the model's role.
    """

    def __init__(self, lark: Lark, demand: CallDemand, channels: Channels) -> None:
        """Prepare.

        Args:
            lark: gets the rules.
            demand: says which calls.
            channels: how messages are written.

        Raises:
            RefusalError: the tags are no tokens, so that a text could hold them.
        """
        tags = (channels.start, channels.channel, channels.message, channels.end)
        if not all(map(lark.is_token, tags)):
            text = "calls cannot be held to a schema, as the tags of this model's messages are no tokens"
            raise RefusalError(text, field="tools")
        self._lark, self._demand, self._channels = lark, demand, channels
        self.start, self.channel, self.message, self.end = map(lark.text, tags)
        self.ended = one_of(lark.text(tag) for tag in channels.ends if lark.is_token(tag))
        self.role = lark.text(channels.role)

    def first(self) -> str:
        """Return the rule of a call whose message and role the prompt has begun.

        Raises:
            RefusalError: a tool's schema cannot be followed.
        """
        return self._calls("first", "", "")

    def later(self) -> str:
        """Return the rule of a call behind the tag that begins a message.

        Raises:
            RefusalError: a tool's schema cannot be followed.
        """
        return self._calls("later", re.escape(self._channels.role), self.role)

    def more(self) -> str:
        """Return what may stand behind a call: more of them, if the request takes several, and a last tag."""
        following = self._lark.rule("following", f"{self.ended} {self.start} {self.later()}")
        several = f"{following}{{0,{MAX_CALLS - 1}}} " if self._demand.several else ""
        return f"{several}{self.ended}?"

    def kind(self) -> str:
        """Return the rule of what says the type of a text, or of nothing."""
        lark, constrain = self._lark, self._channels.constrain
        words = [lark.rule("KIND", f"/ {_WORD}/")]
        if lark.is_token(constrain):
            words.append(f'" "? {lark.text(constrain)} {lark.rule("TYPE", f"/{_WORD}/")}')
        return lark.rule("kind", f"({' | '.join(words)})?")

    def _calls(self, name: str, role: str, role_rule: str) -> str:
        """Return the rule of a call of any tool.

        Args:
            name: of the rule.
            role: regex of what stands before a recipient that is behind the role.
            role_rule: matches the same before a channel.
        """
        lark, calls = self._lark, []
        where = lark.rule("WHERE", f"/{_CHANNELS}/")
        for index, tool in enumerate(self._demand.tools):
            to = re.escape(f"{self._channels.recipient}{self._channels.functions}{tool.name}")
            by_role = lark.rule(f"{name.upper()}_TO_{index}", regex(f"{role} {to}" if role else f" ?{to}"))
            by_channel = lark.rule(f"ON_CHANNEL_TO_{index}", regex(f"{_CHANNELS} {to}"))
            head = f"({by_role} {self.channel} {where} | {role_rule} {self.channel} {by_channel})"
            calls.append(f"{head} {self._text(index, tool)}")
        return lark.rule(f"{name}_call", one_of(calls))

    def _text(self, index: int, tool: CallableTool) -> str:
        """Return the rule of a tool's arguments with their tags, which adds the schema once."""
        name = f"text_{index}"
        if not self._lark.has(name):
            arguments = json_arguments_rule(self._lark, index, tool)
            self._lark.rule(name, f"{self.kind()} {self.message} {arguments}")
        return name
