"""`splitserve batch`: a file of requests answered into another."""

from __future__ import annotations

import argparse

from splitserve.client.batch.settings import BatchSettings
from splitserve.client.target.model_argument import add_model
from splitserve.engine_core.settings.arguments import given_values, make_settings
from splitserve.engine_core.settings.parser import CommandParser
from splitserve.engine_core.settings.setting import declared
from splitserve.engine_core.settings.sources import add_settings

BATCH = declared(BatchSettings)


def fill(parser: CommandParser) -> None:
    """Add its arguments."""
    add_model(parser)
    add_settings(parser, BATCH)


def run(args: argparse.Namespace) -> int:
    """Answer the batch; raises SplitServeError."""
    settings = make_settings(BatchSettings, given_values(args, BATCH))

    from splitserve.client.batch.batch import batch

    return batch(settings, args.model_to_serve)
