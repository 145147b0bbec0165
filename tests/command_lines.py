"""Whether a program of ours takes a command line: by its own parser, and the checks of its settings.

For command lines in documentation and in files of deploy/, whose models, keys and files are not here.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from unittest import mock

from splitserve.engine_core import cli as engine_cli
from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.launcher import cli as splitserve_cli
from splitserve.engine_core.launcher.serve_settings import ENGINE, FRONTEND, MODEL, SERVE, ServeSettings
from splitserve.engine_core.settings.arguments import given_values, make_settings
from splitserve.engine_core.settings.parser import CommandParser
from splitserve.engine_core.settings.setting import Declared, declared
from splitserve.engine_core.settings.sources import PREFIX, variable
from splitserve.frontend import cli as frontend_cli
from splitserve.frontend.config import FRONTEND_SETTINGS, ApiKeySettings, FrontendConfig

PROGRAMS = ("splitserve", "engine-core", "api-frontend")
NO_ENVIRONMENT: Mapping[str, str] = {}


def check_command_line(words: Sequence[str], environ: Mapping[str, str] = NO_ENVIRONMENT) -> None:
    """Fail if the program refuses its flags, their values or the variables that it is given.

    Args:
        words: one of PROGRAMS, and what follows it.
        environ: its environment variables; those that begin with SPLITSERVE_ must be settings of it.

    Raises:
        AssertionError: says what the program would.
        ConfigError: a value is out of its range, or does not go with another.
    """
    program, *arguments = words
    said = io.StringIO()
    try:
        with mock.patch.dict(os.environ, environ, clear=True), contextlib.redirect_stderr(said):
            settings = _checked(program, arguments)
    except SystemExit as ended:
        if ended.code:
            raise AssertionError(said.getvalue()) from None
        return
    known = {variable(each) for each in settings}
    unknown = [name for name in environ if name.startswith(PREFIX) and name not in known]
    assert unknown == [], f"no settings of {program}: {unknown}"


def _checked(program: str, arguments: Sequence[str]) -> tuple[Declared, ...]:
    if program == "engine-core":
        args = engine_cli.make_parser().parse_args(arguments)
        make_settings(EngineConfig, given_values(args, declared(EngineConfig)))
        return declared(EngineConfig)
    if program == "api-frontend":
        args = frontend_cli.make_parser().parse_args(arguments)
        _check_frontend(args, declared(FrontendConfig))
        return FRONTEND_SETTINGS
    assert program == "splitserve", f"{program} is none of {PROGRAMS}"
    parser = splitserve_cli.make_parser()
    args = parser.parse_args(arguments)
    if args.command != "serve":
        return _settings(parser, arguments)
    make_settings(ServeSettings, given_values(args, SERVE))
    make_settings(EngineConfig, {**given_values(args, ENGINE), "model": getattr(args, "model", "")})
    _check_frontend(args, FRONTEND)
    return (MODEL, *SERVE, *FRONTEND, *ENGINE)


def _check_frontend(args: argparse.Namespace, settings: Sequence[Declared]) -> None:
    keys = {each.field for each in declared(ApiKeySettings)}
    given = given_values(args, [each for each in settings if each.field not in keys])
    make_settings(FrontendConfig, {"frontend_id": "frontend-1", **given})
    make_settings(ApiKeySettings, given_values(args, declared(ApiKeySettings)))


def _settings(parser: CommandParser, arguments: Sequence[str]) -> tuple[Declared, ...]:
    for word in arguments:
        parser = parser.commands().get(word, parser)
    return parser.settings
