"""The splitserve command: serve a model with all its processes, make keys, describe the machine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from splitserve.engine_core.errors import EXIT_CONFIG, EXIT_MODEL, EXIT_OK
from splitserve.engine_core.settings.parser import CommandParser

if TYPE_CHECKING:
    from splitserve.engine_core.config import EngineConfig

MAX_FRONTENDS = 64


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    from splitserve.engine_core.errors import ConfigError, ModelLoadError

    parser = _parser()
    args = parser.parse_args(argv)
    commands = {"serve": _serve, "env": _env, "keys": _keys}
    if args.command is None:
        parser.print_help(sys.stderr)
        return EXIT_CONFIG
    try:
        return commands[args.command](args)
    except ConfigError as error:
        return _fail(str(error), EXIT_CONFIG)
    except ModelLoadError as error:
        return _fail(str(error), EXIT_MODEL)


def _fail(message: str, code: int) -> int:
    print(f"splitserve: error: {message}", file=sys.stderr, flush=True)
    return code


def _parser() -> argparse.ArgumentParser:
    from splitserve.engine_core.config import software_version

    parser = CommandParser(
        prog="splitserve", allow_abbrev=False, description="Serves language models over the OpenAI API."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {software_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_serve(commands)
    commands.add_parser(
        "env", help="print versions, processor and memory, for bug reports", allow_abbrev=False
    )
    keys = commands.add_parser(
        "keys", help="make the keys that engines and frontends need on TCP", allow_abbrev=False
    )
    keys.add_argument(
        "directory", metavar="DIR", help="made if it does not exist; readable by its owner only"
    )
    return parser


def _add_serve(commands: argparse._SubParsersAction[CommandParser]) -> None:
    from splitserve.engine_core.settings.flags import add_engine_flags, add_flag
    from splitserve.engine_core.settings.frontend_flags import FRONTEND_FLAGS

    serve = commands.add_parser(
        "serve",
        allow_abbrev=False,
        help="serve a model: one engine-core and its api-frontends",
        description="Starts an engine-core and its api-frontends as separate processes and keeps them alive.",
    )
    serve.hints = {"--model": "the model is the first word: splitserve serve MODEL"}
    serve.add_argument(
        "model",
        nargs="?",
        default="",
        metavar="MODEL",
        help="checkpoint directory or Hugging Face id; default: the demo model that ships with the package",
    )
    address = serve.add_argument_group("address")
    address.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    address.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)")
    address.add_argument("--uds", default="", metavar="PATH", help="Unix socket to listen on instead")
    address.add_argument(
        "--api-server-count",
        type=int,
        default=1,
        metavar="N",
        help="api-frontend processes that share the address (default: %(default)s)",
    )
    for title, flags in FRONTEND_FLAGS.items():
        group = serve.add_argument_group(title)
        for flag in flags:
            add_flag(group, flag)
    add_engine_flags(serve)


def _serve(args: argparse.Namespace) -> int:
    from splitserve.engine_core.config import default_engine_address
    from splitserve.engine_core.errors import ConfigError
    from splitserve.engine_core.settings.flags import ENGINE_FLAGS, engine_config, given_words
    from splitserve.engine_core.settings.frontend_flags import FRONTEND_FLAGS

    if not 0 <= args.port <= 65535:
        raise ConfigError(f"--port must be from 0 to 65535, got {args.port}")
    if not 1 <= args.api_server_count <= MAX_FRONTENDS:
        raise ConfigError(
            f"--api-server-count must be from 1 to {MAX_FRONTENDS}, got {args.api_server_count}"
        )
    _check_model_is_not_swallowed(args)
    if hasattr(args, "frontend_assets_dir"):
        args.tokenizer_check = False
    config = engine_config(args, model=args.model, listen=default_engine_address())
    if any(hasattr(args, flag.field) for flags in FRONTEND_FLAGS.values() for flag in flags):
        check_frontend_flags(given_words(args, FRONTEND_FLAGS))
    _check_model(config, getattr(args, "frontend_assets_dir", ""))
    shutdown_s = getattr(args, "frontend_shutdown_timeout", config.drain_timeout_s)
    args.frontend_shutdown_timeout = shutdown_s

    from splitserve.engine_core.clock import SystemClock
    from splitserve.engine_core.launcher.serve import ServeOptions, Server

    options = ServeOptions(
        model=args.model,
        host=args.host,
        port=args.port,
        uds=args.uds,
        num_frontends=args.api_server_count,
        drain_timeout_s=max(shutdown_s, config.drain_timeout_s),
        engine_flags=tuple(given_words(args, ENGINE_FLAGS)),
        frontend_flags=(*given_words(args, FRONTEND_FLAGS), f"--log-level={config.log_level}"),
        scheme="https" if hasattr(args, "frontend_ssl_certfile") else "http",
        has_api_key=hasattr(args, "frontend_api_key") or hasattr(args, "frontend_api_key_file"),
    )
    return Server(options, SystemClock()).run()


def check_frontend_flags(words: Iterable[str]) -> None:
    """Let api-frontend check flags that are for it, and the files they name, before anything is started.

    It is asked as a command, as it is started: the engine's package imports nothing of the frontend.

    Raises:
        ConfigError: names the flag.
    """
    import subprocess

    from splitserve.engine_core.errors import ConfigError
    from splitserve.engine_core.process.children import python_module

    command = [*python_module("splitserve.frontend.cli"), "--check-config", *words]
    asked = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if asked.returncode:
        said = asked.stderr.strip().rpartition("\n")[2]
        raise ConfigError(said.removeprefix("api-frontend: error: ") or "api-frontend cannot be run")


def _check_model(config: EngineConfig, assets_dir: str) -> None:
    """Refuse a model whose files are here and at fault. What a hub id means, the engine-core finds out.

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


def _check_model_is_not_swallowed(args: argparse.Namespace) -> None:
    """Refuse to serve the demo model when a flag of several values took the model's directory for one more.

    Raises:
        ConfigError: names the flag and the directory.
    """
    from splitserve.engine_core.errors import ConfigError
    from splitserve.engine_core.settings.flags import ENGINE_FLAGS
    from splitserve.engine_core.settings.frontend_flags import FRONTEND_FLAGS

    tables = (ENGINE_FLAGS, FRONTEND_FLAGS)
    many = [flag for table in tables for flags in table.values() for flag in flags if flag.many]
    for flag in many:
        last = getattr(args, flag.field, [""])[-1]
        if not args.model and os.path.isfile(os.path.join(last, "config.json")):
            raise ConfigError(f"{flag.name} took the directory {last} as one of its values: put MODEL first")


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
