"""`splitserve complete`: texts that a model goes on with, in the terminal or for a script."""

from __future__ import annotations

import argparse
import asyncio

from splitserve.client.chat.settings import PromptSettings
from splitserve.client.sampling_fields import SamplingSettings
from splitserve.client.target.model_argument import add_model
from splitserve.engine_core.errors import EXIT_OK
from splitserve.engine_core.settings.arguments import given_values, make_settings
from splitserve.engine_core.settings.parser import CommandParser
from splitserve.engine_core.settings.setting import declared
from splitserve.engine_core.settings.sources import add_settings

COMPLETE = (*declared(PromptSettings), *declared(SamplingSettings))


def fill(parser: CommandParser) -> None:
    """Add its arguments."""
    add_model(parser)
    add_settings(parser, COMPLETE)


def run(args: argparse.Namespace) -> int:
    """Complete; raises SplitServeError."""
    settings = make_settings(PromptSettings, given_values(args, declared(PromptSettings)))
    sampling = make_settings(SamplingSettings, given_values(args, declared(SamplingSettings)))

    from splitserve.client.chat.prompts import given_prompt
    from splitserve.client.chat.talk import complete
    from splitserve.client.target.target import target

    prompt = given_prompt(settings.quick, args.model_to_serve)
    with target(settings, args.model_to_serve) as address:
        asyncio.run(complete(address, settings, sampling, prompt))
    return EXIT_OK
