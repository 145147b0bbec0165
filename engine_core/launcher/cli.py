"""The splitserve command: serve a model with all its processes, restart them, make keys, and others."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from splitserve.engine_core.errors import EXIT_CONFIG, EXIT_FAILED, EXIT_MODEL, EXIT_OK
from splitserve.engine_core.settings.parser import CommandParser

if TYPE_CHECKING:
    from splitserve.engine_core.config import EngineConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    from splitserve.client.commands import COMMANDS
    from splitserve.engine_core.errors import ConfigError, ModelLoadError, SplitServeError
    from splitserve.engine_core.process.standard_streams import open_standard_streams

    open_standard_streams()
    parser = make_parser()
    args = parser.parse_args(argv)
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        **{"serve": _serve, "restart": _restart, "env": _env, "keys": _keys},
        **{each.name: each.run for each in COMMANDS},
    }
    if args.command is None:
        parser.print_help(sys.stderr)
        return EXIT_CONFIG
    try:
        return commands[args.command](args)
    except ConfigError as error:
        return _fail(str(error), EXIT_CONFIG)
    except ModelLoadError as error:
        return _fail(str(error), EXIT_MODEL)
    except SplitServeError as error:
        return _fail(str(error), EXIT_FAILED)
    except BrokenPipeError:
        # Whoever read along has enough; nothing more can be written at the interpreter's end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        # While `serve` still checks what it was given, or another waits: nothing has to be ended.
        return 128 + signal.SIGINT


def _fail(message: str, code: int) -> int:
    print(f"splitserve: error: {message}", file=sys.stderr, flush=True)
    return code


def make_parser() -> CommandParser:
    """Return the parser; building it loads nothing heavy."""
    from splitserve.client.commands import COMMANDS, add_commands
    from splitserve.engine_core.process.version import software_version

    parser = CommandParser(
        prog="splitserve", allow_abbrev=False, description="Serves language models over the OpenAI API."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {software_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_serve(commands)
    _add_restart(commands)
    commands.add_parser(
        "env", help="print versions, processor and memory, for bug reports", allow_abbrev=False
    )
    keys = commands.add_parser(
        "keys", help="make the keys that engines and frontends need on TCP", allow_abbrev=False
    )
    keys.add_argument(
        "directory", metavar="DIR", help="made if it does not exist; readable by its owner only"
    )
    add_commands(commands, COMMANDS)
    parser.set_defaults(root_parser=parser)
    return parser


def _add_serve(commands: argparse._SubParsersAction[CommandParser]) -> None:
    serve = commands.add_parser(
        "serve",
        allow_abbrev=False,
        help="serve a model: one engine-core and its api-frontends",
        description="Starts an engine-core and its api-frontends as separate processes and keeps them alive.",
    )
    serve.add_argument(
        "model",
        nargs="?",
        default=argparse.SUPPRESS,
        metavar="MODEL",
        help="checkpoint directory, GGUF file, or Hugging Face id (default: the demo model of the package)",
    )
    serve.fill = _fill_serve


def _fill_serve(serve: CommandParser) -> None:
    from splitserve.engine_core.launcher.serve_settings import ENGINE, FRONTEND, HINTS, MODEL, SERVE
    from splitserve.engine_core.settings.sources import add_settings

    serve.hints = HINTS
    add_settings(serve, (MODEL, *SERVE, *FRONTEND, *ENGINE))


def _add_restart(commands: argparse._SubParsersAction[CommandParser]) -> None:
    command = commands.add_parser(
        "restart",
        allow_abbrev=False,
        help="replace the processes of a running server one after another",
        description="Replaces all processes of a running `splitserve serve` but itself, while it serves.",
    )
    command.fill = _fill_restart


def _fill_restart(command: CommandParser) -> None:
    from splitserve.engine_core.launcher.restart import RESTART
    from splitserve.engine_core.settings.sources import add_settings

    add_settings(command, RESTART)


def _serve(args: argparse.Namespace) -> int:
    from splitserve.engine_core.config import EngineConfig
    from splitserve.engine_core.launcher.serve_settings import (
        ENGINE,
        FRONTEND,
        SERVE,
        ServeSettings,
        frontend_config,
    )
    from splitserve.engine_core.settings.arguments import flag_words, given_values, make_settings

    model = getattr(args, "model", "")
    serve = make_settings(ServeSettings, given_values(args, SERVE))
    engine = given_values(args, ENGINE)
    frontend = given_values(args, FRONTEND)
    _check_model_is_not_swallowed(model, engine, frontend)
    if "assets_dir" in frontend:
        engine["tokenizer_check"] = False
    config = make_settings(EngineConfig, {**engine, "model": model})
    if frontend:
        check_frontend_flags(flag_words(FRONTEND, frontend))
    if config.fit:
        return _fit(model, flag_words(ENGINE, engine))
    frontend.setdefault("shutdown_timeout_s", config.drain_timeout_s)
    api = frontend_config(frontend)
    _check_model(config, api.assets_dir)

    from splitserve.engine_core.clock import SystemClock
    from splitserve.engine_core.launcher.launcher import Launcher
    from splitserve.engine_core.launcher.options import LaunchOptions
    from splitserve.engine_core.process.server_record import FILES_NAME, RESPONSES_NAME

    options = LaunchOptions(
        model=model,
        host=serve.host,
        port=serve.port,
        uds=serve.uds,
        num_frontends=serve.api_server_count,
        drain_timeout_s=max(api.shutdown_timeout_s, config.drain_timeout_s),
        engine_flags=tuple(flag_words(ENGINE, engine)),
        frontend_flags=(
            *flag_words(FRONTEND, frontend),
            f"--log-level={config.log_level}",
            f"--log-format={config.log_format}",
        ),
        own_stores={
            flag: name
            for field, flag, name in (
                ("response_store", "--response-store", RESPONSES_NAME),
                ("file_store", "--file-store", FILES_NAME),
            )
            if field not in frontend
        },
        scheme="https" if "ssl_certfile" in frontend else "http",
        has_api_key="api_key" in frontend or "api_key_file" in frontend,
    )
    return Launcher(options, SystemClock()).run()


def _fit(model: str, flags: Iterable[str]) -> int:
    """Let an engine-core say what the model takes; return its exit code."""
    import subprocess

    from splitserve.engine_core.process.children import child_environment, python_module, shell_code

    command = [*python_module("splitserve.engine_core.cli"), f"--model={model}", *flags]
    return shell_code(subprocess.run(command, stdin=subprocess.DEVNULL, env=child_environment()).returncode)


def check_frontend_flags(words: Iterable[str]) -> None:
    """Let api-frontend check its flags, and the files they name, before anything is started.

    It runs as a command, since the engine's package does not import the frontend's code.

    Raises:
        ConfigError: names the flag.
    """
    import subprocess

    from splitserve.engine_core.errors import ConfigError
    from splitserve.engine_core.process.children import child_environment, python_module

    command = [*python_module("splitserve.frontend.cli"), "--check-config", *words]
    asked = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode:
        said = asked.stderr.strip().rpartition("\n")[2]
        raise ConfigError(said.removeprefix("api-frontend: error: ") or "api-frontend cannot be run")


def _check_model(config: EngineConfig, assets_dir: str) -> None:
    """Refuse a local model with invalid files. A hub id is left to the engine-core.

    Raises:
        ModelLoadError: names the file.
        ConfigError: the configuration asks for more than the model can do.
    """
    from pathlib import Path

    from splitserve.engine_core.checkpoint.source import local_model
    from splitserve.engine_core.checkpoint.text_files import check_text_files
    from splitserve.engine_core.model_check import check_before_start

    directory = local_model(config.model)
    if directory is not None:
        check_before_start(config, directory)
    text_directory = Path(assets_dir) if assets_dir else directory
    if text_directory is not None:
        check_text_files(text_directory)


def _check_model_is_not_swallowed(
    model: str, engine: Mapping[str, object], frontend: Mapping[str, object]
) -> None:
    """Refuse to serve the demo model if a flag with several values swallowed the model's directory.

    Raises:
        ConfigError: names the flag and the directory.
    """
    from splitserve.engine_core.errors import ConfigError
    from splitserve.engine_core.launcher.serve_settings import ENGINE, FRONTEND

    for settings, given in ((ENGINE, engine), (FRONTEND, frontend)):
        for each in settings:
            match given.get(each.field):
                case [*_, str(last)] if not model and os.path.isfile(os.path.join(last, "config.json")):
                    raise ConfigError(
                        f"{each.flag} took the directory {last} as one of its values: put MODEL first"
                    )


def _restart(args: argparse.Namespace) -> int:
    from splitserve.engine_core.launcher.restart import RESTART, RestartSettings, restart
    from splitserve.engine_core.settings.arguments import given_values, make_settings

    settings = make_settings(RestartSettings, given_values(args, RESTART))
    return restart(settings, lambda text: print(text, file=sys.stderr, flush=True))


def _env(args: argparse.Namespace) -> int:
    from splitserve.engine_core.launcher.environment import describe

    print(describe())
    return EXIT_OK


def _keys(args: argparse.Namespace) -> int:
    from splitserve.engine_core.ipc.curve import create_keys

    for path in create_keys(args.directory):
        print(path)
    print(
        f"Start both commands with --keys {args.directory}. A frontend on another machine needs engine.key, "
        "frontend.key and frontend.key_secret; engine.key_secret stays here."
    )
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
