"""`splitserve top`: a live view of a server in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time

from splitserve.client.top.settings import TopSettings
from splitserve.engine_core.errors import EXIT_OK
from splitserve.engine_core.settings.arguments import given_values, make_settings
from splitserve.engine_core.settings.parser import CommandParser
from splitserve.engine_core.settings.setting import declared
from splitserve.engine_core.settings.sources import add_settings

WIDTH = 200
TOP = declared(TopSettings)


def fill(parser: CommandParser) -> None:
    """Add its flags."""
    add_settings(parser, TOP)


def run(args: argparse.Namespace) -> int:
    """Show the server until Ctrl-C; raises SplitServeError."""
    settings = make_settings(TopSettings, given_values(args, TOP))
    if settings.once or not sys.stdout.isatty():
        asyncio.run(_show_once(settings))
        return EXIT_OK
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_show(settings))
    return EXIT_OK


async def _show_once(settings: TopSettings) -> None:
    from rich.console import Console

    from splitserve.client.http.api import Api
    from splitserve.client.top.look import Looks

    async with Api(settings.address(settings.url)) as api:
        looks = Looks(api, settings)
        await looks.look()
        await asyncio.sleep(settings.interval_s)
        # What is piped somewhere is not cut to a terminal's width.
        Console(width=None if sys.stdout.isatty() else WIDTH).print(await looks.look())


async def _show(settings: TopSettings) -> None:
    from rich.live import Live
    from rich.text import Text

    from splitserve.client.http.api import Api
    from splitserve.client.http.errors import ApiError
    from splitserve.client.top.look import Looks

    async with Api(settings.address(settings.url)) as api:
        looks = Looks(api, settings)
        # The first one may fail: then there is no server to show.
        with Live(await looks.look(), screen=True, auto_refresh=False) as live:
            due_s = time.monotonic()
            while True:
                due_s = max(due_s + settings.interval_s, time.monotonic())
                await asyncio.sleep(due_s - time.monotonic())
                try:
                    live.update(await looks.look(), refresh=True)
                except ApiError as error:
                    live.update(Text(str(error), style="red"), refresh=True)
