"""The configuration of one api-frontend process, built once by its command line and validated before use."""

from __future__ import annotations

import os
import re

import msgspec

from splitserve.engine_core.config import check_address, check_choice, check_range
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.addresses import check_keys
from splitserve.engine_core.sampling_params import MAX_LOGPROBS, MAX_STEP_LOGPROBS

GENERATION_CONFIGS = ("auto", "none")
# A descriptor is a C int.
MAX_DESCRIPTOR = 2**31 - 1
LOG_LEVELS = ("debug", "info", "warning", "error")
# Paths an operator may open to callers without a key; nothing that runs a model or reads a prompt is here.
OPENABLE_PATHS = ("/health", "/ready", "/ping", "/load", "/version", "/metrics", "/docs", "/openapi.json")
# Own paths begin with these; published under one of them, a path could be read with and without the prefix.
OWN_PREFIXES = ("/v1", "/v1/chat", "/v1/models", "/debug", "/debug/requests", "/docs")


class FrontendConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an api-frontend is told on its command line; sizes are bytes, `_s` are seconds.

    Attributes:
        engines: ZMQ addresses of the engine-cores.
        frontend_id: unique per process; names it in the engines' leases, and in its own metrics
            where it has no launch_number.
        host, port: TCP address to serve on; port 0 takes a free one. Ignored with `uds` or `fd`.
        uds: path of a Unix socket to serve on.
        fd: inherited listening socket to serve on.
        launch_dir, launch_number, launch_fd: of a frontend of `splitserve serve`: the launch's private
            directory, its number from 1 on, the descriptor of what they share. "", 0 and None otherwise.
        root_path: prefix under which a proxy publishes this server, whether it strips it or not.
        api_key_hashes: SHA-256 (hex) of every accepted key; empty switches authentication off.
        tenant_header: request header whose value names the tenant; "" for none.
        public_paths: paths served without a key besides /live.
        allowed_origins, allowed_methods, allowed_headers, allow_credentials: CORS; no origin, no CORS.
        ssl_keyfile, ssl_certfile: TLS when both are set.
        strict: unknown body fields get 400 instead of a log line.
        generation_config: "auto" takes sampling defaults from the checkpoint, "none" OpenAI's.
        disable_docs: leave out /docs and /openapi.json.
        max_logprobs: largest number of logprobs that a request may ask for per token.
        return_tokens_as_token_ids: write tokens of logprobs as "token_id:123" unless the request says no.
        enable_force_include_usage: end every stream with a usage chunk.
        enable_per_request_metrics: tell the times of its tokens in the answer of a request.
        enable_tokenizer_info_endpoint: serve /tokenizer_info.
        sse_keep_alive_s: idle time after which a stream gets a comment; 0 never.
        max_body_bytes: largest request body.
        max_body_memory_bytes: all bodies that arrive or wait to be decoded, together.
        max_answer_values: token ids and logprobs in one answer (see frontend.openai.answers.answer_size).
        header_timeout_s, body_timeout_s: time a client has to send them.
        write_stall_s: time a client may leave sent bytes unread before its request is aborted.
        max_open_requests: requests in progress; beyond it 429.
        max_connections, max_connections_per_address: open sockets; 0 means no limit per address.
        health_timeout_s: time an engine has to answer a health probe.
        shutdown_timeout_s: time open requests have to end after SIGTERM.
        curve_dir: folder with this frontend's CURVE key pair and the engines' public keys.
        allow_insecure_tcp: permit engines over TCP beyond loopback without keys.
        assets_dir: folder of tokenizer and template, if not where the engine says.
        log_level: "debug", "info", "warning" or "error".
    """

    engines: tuple[str, ...]
    frontend_id: str = "frontend-0"
    host: str = "127.0.0.1"
    port: int = 8000
    uds: str = ""
    fd: int | None = None
    launch_dir: str = ""
    launch_number: int = 0
    launch_fd: int | None = None
    root_path: str = ""
    api_key_hashes: tuple[str, ...] = ()
    tenant_header: str = ""
    public_paths: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    allowed_methods: tuple[str, ...] = ("GET", "POST")
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    ssl_keyfile: str = ""
    ssl_certfile: str = ""
    strict: bool = False
    generation_config: str = "auto"
    disable_docs: bool = False
    max_logprobs: int = MAX_LOGPROBS
    return_tokens_as_token_ids: bool = False
    enable_force_include_usage: bool = False
    enable_per_request_metrics: bool = False
    enable_tokenizer_info_endpoint: bool = False
    sse_keep_alive_s: float = 15.0
    max_body_bytes: int = 4 * 2**20
    max_body_memory_bytes: int = 256 * 2**20
    max_answer_values: int = 2**20
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    write_stall_s: float = 20.0
    max_open_requests: int = 4096
    max_connections: int = 16384
    max_connections_per_address: int = 0
    health_timeout_s: float = 5.0
    shutdown_timeout_s: float = 30.0
    curve_dir: str = ""
    allow_insecure_tcp: bool = False
    assets_dir: str = ""
    log_level: str = "info"

    def validate(self) -> None:
        """Check every value against its range.

        Raises:
            ConfigError: names the flag and the range.
        """
        if not self.engines:
            raise ConfigError("--engine must be given at least once")
        for address in self.engines:
            check_address("--engine", address)
            check_keys(address, bool(self.curve_dir), self.allow_insecure_tcp)
        check_range("--port", self.port, 0, 65535)
        self._validate_edges()
        self._validate_limits()

    def check_certificate(self) -> None:
        """Load the certificate and its key, if there are any.

        Raises:
            ConfigError: they cannot be read, or do not belong together.
        """
        if not self.ssl_certfile:
            return
        import ssl

        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.ssl_certfile, self.ssl_keyfile)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"--ssl-certfile and --ssl-keyfile cannot be used: {error}") from None

    def _validate_edges(self) -> None:
        if self.uds and self.fd is not None:
            raise ConfigError("--uds and --fd exclude each other")
        for flag, fd in (("--fd", self.fd), ("--launch-fd", self.launch_fd)):
            if fd is not None:
                check_range(flag, fd, 0, MAX_DESCRIPTOR)
        if len({bool(self.launch_dir), self.launch_number > 0, self.launch_fd is not None}) > 1:
            raise ConfigError("--launch-dir, --launch-number and --launch-fd must be given together")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise ConfigError(f"--root-path must start and not end with a slash, got {self.root_path!r}")
        if self.root_path in OWN_PREFIXES:
            raise ConfigError(
                f"--root-path must not be one of {', '.join(OWN_PREFIXES)}, which routes begin with"
            )
        if self.tenant_header and not re.fullmatch(r"[A-Za-z0-9-]{1,64}", self.tenant_header, re.ASCII):
            raise ConfigError(f"--tenant-header must be a header's name, got {self.tenant_header!r}")
        for path in self.public_paths:
            check_choice("--public-path", path, OPENABLE_PATHS)
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ConfigError("--allow-credentials needs named origins, not --allowed-origin '*'")
        if bool(self.ssl_keyfile) != bool(self.ssl_certfile):
            raise ConfigError("--ssl-keyfile and --ssl-certfile must be given together")
        for flag, path in (("--ssl-certfile", self.ssl_certfile), ("--ssl-keyfile", self.ssl_keyfile)):
            if path and not os.access(path, os.R_OK):
                raise ConfigError(f"{flag} {path} does not exist or may not be read")
        check_choice("--generation-config", self.generation_config, GENERATION_CONFIGS)
        check_choice("--log-level", self.log_level, LOG_LEVELS)

    def _validate_limits(self) -> None:
        check_range("--sse-keep-alive", self.sse_keep_alive_s, 0, 3600)
        check_range("--max-logprobs", self.max_logprobs, 0, MAX_STEP_LOGPROBS)
        check_range("--max-body-bytes", self.max_body_bytes, 1024, 2**30)
        check_range("--max-body-memory", self.max_body_memory_bytes, self.max_body_bytes, 2**40)
        check_range("--max-answer-values", self.max_answer_values, 1024, 2**30)
        check_range("--header-timeout", self.header_timeout_s, 0.1, 3600)
        check_range("--body-timeout", self.body_timeout_s, 0.1, 3600)
        check_range("--write-stall", self.write_stall_s, 0.1, 3600)
        check_range("--max-open-requests", self.max_open_requests, 1, 10**6)
        check_range("--max-connections", self.max_connections, 1, 10**6)
        check_range("--max-connections-per-address", self.max_connections_per_address, 0, 10**6)
        check_range("--health-timeout", self.health_timeout_s, 0.01, 600)
        check_range("--shutdown-timeout", self.shutdown_timeout_s, 0, 86400)
