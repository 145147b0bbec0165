"""The api-frontend command: parse, validate, serve, turn errors into exit codes.

exit code   meaning
0           ended by a signal after draining, or --check-config found nothing
1           a bug of ours, see the traceback
2           a flag or configuration value is wrong, or the address is taken
128 + N     ended at once by a second signal N
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from splitserve.engine_core.errors import EXIT_CONFIG, EXIT_FAILED, EXIT_OK, ConfigError
from splitserve.engine_core.process.standard_streams import open_standard_streams

if TYPE_CHECKING:
    from splitserve.frontend.config import ApiKeySettings, FrontendConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    open_standard_streams()
    args = make_parser().parse_args(argv)
    try:
        config = make_config(args)
        if args.check_config:
            return EXIT_OK
        return _serve(config, _count_short_keys(args))
    except ConfigError as error:
        print(f"api-frontend: error: {error}", file=sys.stderr, flush=True)
        return EXIT_CONFIG


def _count_short_keys(args: argparse.Namespace) -> int:
    from splitserve.frontend.http.api_keys import count_short_keys

    keys = _keys(args)
    short = count_short_keys(keys.api_key, keys.api_key_file)
    return short + count_short_keys((), keys.admin_key_file)


def _serve(config: FrontendConfig, num_short_keys: int) -> int:
    import logging

    import msgspec

    from splitserve.engine_core.process.logs import configure_logging, log_event
    from splitserve.engine_core.process.version import software_version
    from splitserve.frontend.database.place import shown_place

    configure_logging(config.log_level, config.log_format)
    log = logging.getLogger("frontend")
    fields = msgspec.to_builtins(config)
    # Hashes name tenants; how many keys there are is all that start-up needs to show.
    fields["api_key_hashes"] = len(config.api_key_hashes)
    fields["admin_key_hashes"] = len(config.admin_key_hashes)
    fields["response_store"] = shown_place(config.response_store)
    fields["file_store"] = shown_place(config.file_store)
    if config.uds or config.fd is not None:
        del fields["host"], fields["port"]
    log_event(log, logging.INFO, "api_frontend", version=software_version(), **fields)
    if num_short_keys:
        from splitserve.frontend.http.api_keys import MIN_SAFE_KEY_CHARS

        log_event(
            log, logging.WARNING, "short_api_keys", count=num_short_keys, safe_from_chars=MIN_SAFE_KEY_CHARS
        )
    from splitserve.frontend.http_server import run_server

    try:
        return run_server(config)
    except KeyboardInterrupt:
        return 128 + 2
    except (OSError, RuntimeError):
        log.exception("unexpected error")
        return EXIT_FAILED


def make_config(args: argparse.Namespace) -> FrontendConfig:
    """Build and check the configuration.

    Raises:
        ConfigError: names the flag.
    """
    from splitserve.engine_core.settings.arguments import given_values, make_settings
    from splitserve.engine_core.settings.setting import declared
    from splitserve.frontend.batches.place import check_file_store
    from splitserve.frontend.config import FrontendConfig
    from splitserve.frontend.database.place import is_named
    from splitserve.frontend.http.api_keys import hash_keys
    from splitserve.frontend.response_store.place import check_place
    from splitserve.frontend.responses.compaction.summary_seal import read_seal
    from splitserve.frontend.text.chat.known_templates import find_template

    given = given_values(args, declared(FrontendConfig))
    if not given.get("frontend_id"):
        number = f"{given['launch_number']}-" if given.get("launch_number") else ""
        given["frontend_id"] = f"frontend-{number}{os.getpid()}"
    keys = _keys(args)
    given["api_key_hashes"] = hash_keys(keys.api_key, keys.api_key_file)
    given["admin_key_hashes"] = hash_keys((), keys.admin_key_file, "--admin-key-file")
    config = make_settings(FrontendConfig, given)
    config.check_certificate()
    # The engine makes the directory of a launch, some time after the frontends have started.
    check_place(config.response_store, config.launch_dir)
    if is_named(config.file_store):
        check_file_store(config.file_store, config.launch_dir)
    read_seal(config.compaction_key_file)
    if config.chat_template:
        find_template(config.chat_template)
    return config


def _keys(args: argparse.Namespace) -> ApiKeySettings:
    from splitserve.engine_core.settings.arguments import given_values, make_settings
    from splitserve.engine_core.settings.setting import declared
    from splitserve.frontend.config import ApiKeySettings

    return make_settings(ApiKeySettings, given_values(args, declared(ApiKeySettings)))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; importing and building it loads no server code."""
    from splitserve.engine_core.process.version import software_version
    from splitserve.engine_core.settings.parser import CommandParser
    from splitserve.engine_core.settings.sources import add_settings
    from splitserve.frontend.config import FRONTEND_SETTINGS

    parser = CommandParser(
        prog="api-frontend",
        allow_abbrev=False,
        description="Serves the OpenAI API over one or several engine-cores, started before or after it.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {software_version()}")
    parser.add_argument(
        "--check-config", action="store_true", help="check the flags and the files they name, then exit"
    )
    add_settings(parser, FRONTEND_SETTINGS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
