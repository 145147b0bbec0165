"""What `splitserve chat` and `splitserve complete` may be told."""

# No "from __future__ import annotations": --help would then have to evaluate each declaration.
from typing import Annotated

from splitserve.client.target.settings import TargetSettings
from splitserve.engine_core.settings.setting import Setting

MAX_TOKENS = 2**23


class PromptSettings(TargetSettings, frozen=True, kw_only=True):
    """Settings that both share."""

    quick: Annotated[
        str,
        Setting(
            "answer this and end; what is piped in comes after it",
            "prompt",
            alias="-q",
            metavar="TEXT",
            default="what is typed, or piped in",
        ),
    ] = ""
    max_tokens: Annotated[
        int | None,
        Setting("longest answer, in tokens", "prompt", low=1, high=MAX_TOKENS, default="the server's"),
    ] = None
    history: Annotated[
        bool, Setting("keep what is typed for the arrow keys, in a file", "prompt", negatable=True)
    ] = True


class ChatSettings(PromptSettings, frozen=True, kw_only=True):
    """Settings of chats."""

    system_prompt: Annotated[
        str, Setting("first message, of the system", "prompt", metavar="TEXT", default="none")
    ] = ""
