"""`splitserve chat`: a conversation with a model, in the terminal or for a script."""

from __future__ import annotations

import argparse
import asyncio

from splitserve.client.chat.settings import ChatSettings
from splitserve.client.sampling_fields import SamplingSettings
from splitserve.client.target.model_argument import add_model
from splitserve.engine_core.errors import EXIT_OK
from splitserve.engine_core.settings.arguments import given_values, make_settings
from splitserve.engine_core.settings.parser import CommandParser
from splitserve.engine_core.settings.setting import declared
from splitserve.engine_core.settings.sources import add_settings

CHAT = (*declared(ChatSettings), *declared(SamplingSettings))


def fill(parser: CommandParser) -> None:
    """Add its arguments."""
    add_model(parser)
    add_settings(parser, CHAT)


def run(args: argparse.Namespace) -> int:
    """Talk; raises SplitServeError."""
    settings = make_settings(ChatSettings, given_values(args, declared(ChatSettings)))
    sampling = make_settings(SamplingSettings, given_values(args, declared(SamplingSettings)))

    from splitserve.client.chat.prompts import given_prompt
    from splitserve.client.chat.talk import chat
    from splitserve.client.target.target import target

    prompt = given_prompt(settings.quick, args.model_to_serve)
    with target(settings, args.model_to_serve) as address:
        asyncio.run(chat(address, settings, sampling, prompt))
    return EXIT_OK
