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
from splitserve.engine_core.settings.flag_values import parse_bytes, parse_count, parse_name

if TYPE_CHECKING:
    from splitserve.frontend.config import FrontendConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
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

    return count_short_keys(args.api_key or [], args.api_key_file)


def _serve(config: FrontendConfig, num_short_keys: int) -> int:
    import logging

    import msgspec

    from splitserve.engine_core.config import software_version
    from splitserve.frontend.event_log import log_event, set_up_logging

    set_up_logging(config.log_level)
    fields = msgspec.to_builtins(config)
    # Hashes name tenants; how many keys there are is all that start-up needs to show.
    fields["api_key_hashes"] = len(config.api_key_hashes)
    if config.uds or config.fd is not None:
        del fields["host"], fields["port"]
    log_event("api_frontend", {"version": software_version()} | {key: str(fields[key]) for key in fields})
    if num_short_keys:
        from splitserve.frontend.http.api_keys import MIN_SAFE_KEY_CHARS

        safe = {"count": num_short_keys, "safe_from_chars": MIN_SAFE_KEY_CHARS}
        log_event("short_api_keys", safe, logging.WARNING)
    from splitserve.frontend.server import run_server

    try:
        return run_server(config)
    except KeyboardInterrupt:
        return 128 + 2
    except (OSError, RuntimeError):
        logging.getLogger("frontend").exception("unexpected error")
        return EXIT_FAILED


def make_config(args: argparse.Namespace) -> FrontendConfig:
    """Build and check the configuration.

    Raises:
        ConfigError: names the flag.
    """
    from splitserve.engine_core.config import default_engine_address
    from splitserve.frontend.config import FrontendConfig
    from splitserve.frontend.http.api_keys import hash_keys

    number = f"{args.launch_number}-" if args.launch_number else ""
    config = FrontendConfig(
        engines=tuple(args.engine or [default_engine_address()]),
        frontend_id=args.frontend_id or f"frontend-{number}{os.getpid()}",
        host=args.host,
        port=args.port,
        uds=args.uds,
        fd=args.fd,
        launch_dir=args.launch_dir,
        launch_number=args.launch_number,
        launch_fd=args.launch_fd,
        root_path=args.root_path,
        api_key_hashes=hash_keys(args.api_key or [], args.api_key_file),
        tenant_header=args.tenant_header,
        public_paths=tuple(args.public_path or ()),
        allowed_origins=tuple(args.allowed_origin or ()),
        allowed_methods=tuple(args.allowed_method or ("GET", "POST")),
        allowed_headers=tuple(args.allowed_header or ("*",)),
        allow_credentials=args.allow_credentials,
        ssl_keyfile=args.ssl_keyfile,
        ssl_certfile=args.ssl_certfile,
        strict=args.strict,
        generation_config=args.generation_config,
        disable_docs=args.disable_docs,
        max_logprobs=args.max_logprobs,
        return_tokens_as_token_ids=args.return_tokens_as_token_ids,
        enable_force_include_usage=args.enable_force_include_usage,
        enable_per_request_metrics=args.enable_per_request_metrics,
        enable_tokenizer_info_endpoint=args.enable_tokenizer_info_endpoint,
        sse_keep_alive_s=args.sse_keep_alive,
        max_body_bytes=args.max_body_bytes,
        max_body_memory_bytes=args.max_body_memory,
        max_answer_values=args.max_answer_values,
        header_timeout_s=args.header_timeout,
        body_timeout_s=args.body_timeout,
        write_stall_s=args.write_stall,
        max_open_requests=args.max_open_requests,
        max_connections=args.max_connections,
        max_connections_per_address=args.max_connections_per_address,
        health_timeout_s=args.health_timeout,
        shutdown_timeout_s=args.shutdown_timeout,
        curve_dir=args.keys,
        allow_insecure_tcp=args.insecure,
        assets_dir=args.assets_dir,
        log_level=args.log_level,
    )
    config.validate()
    config.check_certificate()
    return config


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; importing and building it loads no server code."""
    from splitserve.engine_core.config import software_version
    from splitserve.engine_core.settings.parser import CommandParser

    parser = CommandParser(
        prog="api-frontend",
        allow_abbrev=False,
        description="Serves the OpenAI API over one or several engine-cores, started before or after it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {software_version()}")
    parser.add_argument(
        "--check-config", action="store_true", help="check the flags and what they name, and end"
    )
    _add_engine_flags(parser.add_argument_group("engines"))
    _add_address_flags(parser.add_argument_group("address"))
    _add_launch_flags(parser.add_argument_group("launch", "what `splitserve serve` tells its frontends"))
    _add_security_flags(parser.add_argument_group("security"))
    _add_api_flags(parser.add_argument_group("API"))
    _add_limit_flags(parser.add_argument_group("limits"))
    return parser


def _add_engine_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--engine",
        action="append",
        metavar="ADDR",
        help="ZMQ address of an engine-core, ipc://PATH or tcp://HOST:PORT; repeat for several; "
        "without it the address an engine-core listens on by default",
    )
    group.add_argument(
        "--frontend-id", default="", metavar="ID", help="name in logs and metrics; frontend-PID if empty"
    )
    group.add_argument("--keys", default="", metavar="DIR", help="CURVE keys for engines over TCP")
    group.add_argument("--insecure", action="store_true", help="reach engines over TCP without keys")
    group.add_argument(
        "--assets-dir",
        default="",
        metavar="DIR",
        help="folder of tokenizer.json, if not where the engine says",
    )


def _add_address_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", default="127.0.0.1", help="address to listen on")
    group.add_argument("--port", type=int, default=8000, help="port to listen on; 0 takes a free one")
    group.add_argument("--uds", default="", metavar="PATH", help="Unix socket to listen on instead")
    group.add_argument("--fd", type=int, metavar="N", help="inherited listening socket to use instead")
    group.add_argument(
        "--root-path",
        default="",
        metavar="PREFIX",
        help="path under which a proxy publishes this server, stripped or not",
    )


def _add_launch_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--launch-dir", default="", metavar="DIR", help="where its frontends find each other")
    group.add_argument("--launch-number", type=int, default=0, metavar="K", help="which of them this is")
    group.add_argument("--launch-fd", type=int, metavar="N", help="inherited memory that they share")


def _add_security_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--api-key",
        action="extend",
        nargs="+",
        metavar="KEY",
        help="accepted key: 1 to 512 characters, no spaces, better 16 or more; visible in the process list",
    )
    group.add_argument("--api-key-file", default="", metavar="FILE", help="accepted keys, one per line")
    group.add_argument(
        "--public-path",
        action="extend",
        nargs="+",
        metavar="PATH",
        help="serve /health, /metrics or the like without a key",
    )
    group.add_argument(
        "--tenant-header",
        default="",
        metavar="NAME",
        help="request header that names the tenant; only behind a proxy that sets it itself",
    )
    group.add_argument("--allowed-origin", action="extend", nargs="+", metavar="ORIGIN", help="CORS origins")
    group.add_argument(
        "--allowed-method",
        action="extend",
        nargs="+",
        metavar="METHOD",
        help="CORS methods; GET and POST if none",
    )
    group.add_argument(
        "--allowed-header", action="extend", nargs="+", metavar="HEADER", help="CORS headers; all if none"
    )
    group.add_argument(
        "--allow-credentials", action="store_true", help="let browsers send cookies across origins"
    )
    group.add_argument("--ssl-keyfile", default="", metavar="FILE", help="TLS private key")
    group.add_argument("--ssl-certfile", default="", metavar="FILE", help="TLS certificate chain")


def _add_api_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--strict", action="store_true", help="answer 400 to unknown fields instead of ignoring them"
    )
    group.add_argument(
        "--generation-config",
        type=parse_name,
        default="auto",
        metavar="auto|none",
        help="sampling defaults of the checkpoint, or OpenAI's",
    )
    group.add_argument("--disable-docs", action="store_true", help="no /docs and /openapi.json")
    group.add_argument(
        "--max-logprobs",
        type=parse_count,
        default=20,
        metavar="N",
        help="logprobs per token that a request may ask for, 0 to 160",
    )
    group.add_argument(
        "--return-tokens-as-token-ids",
        action="store_true",
        help='write tokens of logprobs as "token_id:123" unless the request says no',
    )
    group.add_argument(
        "--enable-force-include-usage", action="store_true", help="end every stream with a usage chunk"
    )
    group.add_argument(
        "--enable-per-request-metrics",
        action="store_true",
        help="tell the times of its tokens in the answer of a request",
    )
    group.add_argument(
        "--enable-tokenizer-info-endpoint",
        action="store_true",
        help="serve /tokenizer_info, which shows the chat template",
    )
    group.add_argument(
        "--sse-keep-alive",
        type=float,
        default=15.0,
        metavar="S",
        help="comment after so long a silence; 0 never",
    )
    group.add_argument(
        "--log-level",
        type=parse_name,
        default="info",
        metavar="LEVEL",
        help="debug, info, warning or error",
    )


def _add_limit_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-body-bytes",
        type=parse_bytes,
        default=4 * 2**20,
        metavar="BYTES",
        help="largest request body, e.g. 4M",
    )
    group.add_argument(
        "--max-body-memory",
        type=parse_bytes,
        default=256 * 2**20,
        metavar="BYTES",
        help="all request bodies together that are arriving or not yet decoded; 429 beyond",
    )
    group.add_argument(
        "--max-answer-values",
        type=int,
        default=2**20,
        metavar="N",
        help="echoed tokens, token ids and logprobs that one answer may hold; 400 beyond",
    )
    group.add_argument(
        "--header-timeout", type=float, default=10.0, metavar="S", help="time to send the headers"
    )
    group.add_argument("--body-timeout", type=float, default=30.0, metavar="S", help="time to send the body")
    group.add_argument(
        "--write-stall",
        type=float,
        default=20.0,
        metavar="S",
        help="time a client may leave its answer unread",
    )
    group.add_argument(
        "--max-open-requests",
        type=parse_count,
        default=4096,
        metavar="N",
        help="requests in progress; 429 beyond",
    )
    group.add_argument(
        "--max-connections", type=parse_count, default=16384, metavar="N", help="open connections"
    )
    group.add_argument(
        "--max-connections-per-address",
        type=parse_count,
        default=0,
        metavar="N",
        help="of one client address; 0 for no limit",
    )
    group.add_argument(
        "--health-timeout", type=float, default=5.0, metavar="S", help="time an engine has for a probe"
    )
    group.add_argument(
        "--shutdown-timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="time open requests have after SIGTERM",
    )


if __name__ == "__main__":
    sys.exit(main())
