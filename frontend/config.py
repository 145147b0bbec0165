"""The configuration of one api-frontend process, built once by its command line and validated before use."""

# No "from __future__ import annotations": --help would compile each declaration from its text, 10 ms in all.
import os
import re
from typing import Annotated

import msgspec

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.addresses import check_keys
from splitserve.engine_core.process.runtime_directory import default_engine_address
from splitserve.engine_core.settings.checks import check_address
from splitserve.engine_core.settings.setting import Setting, Settings, declared
from splitserve.engine_core.settings.shared import (
    MAX_DESCRIPTOR,
    HeartbeatFd,
    InsecureTcp,
    KeysDirectory,
    LogFormat,
    LogLevel,
)
from splitserve.frontend.api_settings import ApiSettings

# Paths an operator may open to callers without a key; nothing that runs a model or reads a prompt is here.
OPENABLE_PATHS = ("/health", "/ready", "/ping", "/load", "/version", "/metrics", "/docs", "/openapi.json")
# Own paths begin with these; published under one of them, a path could be read with and without the prefix.
OWN_PREFIXES = (
    "/v1",
    "/v2",
    "/v1/chat",
    "/v1/messages",
    "/v1/models",
    "/v1/responses",
    "/debug",
    "/debug/requests",
)

Host = Annotated[str, Setting("address to listen on", "address", metavar="HOST", serve=False)]
Port = Annotated[
    int,
    Setting("port to listen on; 0 = any free one", "address", metavar="PORT", low=0, high=65535, serve=False),
]
UnixSocket = Annotated[
    str,
    Setting("Unix socket to listen on instead", "address", metavar="PATH", default="none", serve=False),
]


class ApiKeySettings(Settings, frozen=True, kw_only=True):
    """The API keys as an operator names them; a FrontendConfig holds their hashes only."""

    api_key: Annotated[
        tuple[str, ...],
        Setting(
            "accepted key of 1 to 512 characters, better 16 or more; visible in the process list",
            "security",
            metavar="KEY",
            default="no authentication",
        ),
    ] = ()
    api_key_file: Annotated[
        str,
        Setting("file of accepted keys, one per line", "security", metavar="FILE", default="none"),
    ] = ""
    admin_key_file: Annotated[
        str,
        Setting(
            "file of keys for administration, one per line: /debug/log_level, /sleep and others",
            "security",
            metavar="FILE",
            default="none, and that is not served",
            docs=", see [Security](security.md#keys)",
        ),
    ] = ""


class FrontendConfig(ApiSettings, frozen=True, kw_only=True):
    """The settings of an api-frontend, which are its flags, too, but for:

    Attributes:
        api_key_hashes: SHA-256 (hex) of every accepted key; empty switches authentication off.
        admin_key_hashes: of every key for administration; empty if that is not served.
    """

    engines: Annotated[
        tuple[str, ...],
        Setting(
            "address of an engine-core, ipc://PATH or tcp://HOST:PORT; repeat for several",
            "engines",
            flag="--engine",
            metavar="ADDR",
            default="where an engine-core listens by default",
            serve=False,
        ),
    ] = msgspec.field(default_factory=lambda: (default_engine_address(),))
    frontend_id: Annotated[
        str,
        Setting(
            "name in logs, metrics and the engines' leases; unique per process",
            "engines",
            metavar="ID",
            default="frontend-PID",
            serve=False,
        ),
    ] = "frontend-0"
    max_migrations: Annotated[
        int,
        Setting(
            "number of engines that may be lost under a request before it ends with an error",
            "failover",
            metavar="N",
            low=0,
            high=1000,
        ),
    ] = 3
    failover_wait_s: Annotated[
        float,
        Setting(
            "maximum time that requests wait for an engine when theirs was lost, in seconds; 0 = none",
            "failover",
            metavar="SECONDS",
            low=0,
            high=3600,
        ),
    ] = 30.0
    curve_dir: KeysDirectory = ""
    allow_insecure_tcp: InsecureTcp = False
    host: Host = "127.0.0.1"
    port: Port = 8000
    uds: UnixSocket = ""
    fd: Annotated[
        int | None,
        Setting(
            "inherited listening socket to use instead",
            "address",
            low=0,
            high=MAX_DESCRIPTOR,
            default="none",
            serve=False,
        ),
    ] = None
    launch_dir: Annotated[
        str,
        Setting(
            "directory where the frontends of `splitserve serve` find each other",
            "launch",
            metavar="DIR",
            default="none",
            serve=False,
        ),
    ] = ""
    launch_number: Annotated[
        int,
        Setting(
            "number of this frontend among them, from 1", "launch", low=0, high=MAX_DESCRIPTOR, serve=False
        ),
    ] = 0
    launch_fd: Annotated[
        int | None,
        Setting(
            "inherited memory that they share",
            "launch",
            low=0,
            high=MAX_DESCRIPTOR,
            default="none",
            serve=False,
        ),
    ] = None
    heartbeat_fd: HeartbeatFd = None
    api_key_hashes: tuple[str, ...] = ()
    admin_key_hashes: tuple[str, ...] = ()
    compaction_key_file: Annotated[
        str,
        Setting(
            "file with the key that seals summaries of conversations, the same for all frontends",
            "security",
            metavar="FILE",
            default="none",
            docs=", see [Responses](responses.md#compaction)",
        ),
    ] = ""
    public_paths: Annotated[
        tuple[str, ...],
        Setting(
            "path to serve without a key, such as /health or /metrics",
            "security",
            flag="--public-path",
            metavar="PATH",
            choices=OPENABLE_PATHS,
            default="none",
        ),
    ] = ()
    tenant_header: Annotated[
        str,
        Setting(
            "request header that names the tenant; only behind a trusted proxy that sets it",
            "security",
            metavar="NAME",
            default="none",
        ),
    ] = ""
    allowed_origins: Annotated[
        tuple[str, ...],
        Setting(
            "origin allowed by CORS; without one, CORS is off",
            "security",
            flag="--allowed-origin",
            metavar="ORIGIN",
            default="none",
        ),
    ] = ()
    allowed_methods: Annotated[
        tuple[str, ...],
        Setting("method allowed by CORS", "security", flag="--allowed-method", metavar="METHOD"),
    ] = ("GET", "POST")
    allowed_headers: Annotated[
        tuple[str, ...],
        Setting("header allowed by CORS", "security", flag="--allowed-header", metavar="HEADER"),
    ] = ("*",)
    allow_credentials: Annotated[bool, Setting("let browsers send cookies across origins", "security")] = (
        False
    )
    ssl_keyfile: Annotated[str, Setting("TLS private key", "security", metavar="FILE", default="none")] = ""
    ssl_certfile: Annotated[
        str, Setting("TLS certificate chain", "security", metavar="FILE", default="none")
    ] = ""
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"

    def validate(self) -> None:
        """Check every value against its declaration, and those that concern each other.

        Raises:
            ConfigError: names the flag and what it takes.
        """
        super().validate()
        if not self.engines:
            raise ConfigError("--engine must be given at least once")
        for address in self.engines:
            check_address("--engine", address)
            check_keys(address, bool(self.curve_dir), self.allow_insecure_tcp)
        self._check_edges()
        self._check_files()

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

    def _check_edges(self) -> None:
        if self.uds and self.fd is not None:
            raise ConfigError("--uds and --fd exclude each other")
        if len({bool(self.launch_dir), self.launch_number > 0, self.launch_fd is not None}) > 1:
            raise ConfigError("--launch-dir, --launch-number and --launch-fd must be given together")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise ConfigError(f"--root-path must start and not end with a slash, got {self.root_path!r}")
        if self.root_path in OWN_PREFIXES:
            raise ConfigError(
                f"--root-path must not be one of {', '.join(OWN_PREFIXES)}, which routes start with"
            )
        if self.tenant_header and not re.fullmatch(r"[A-Za-z0-9-]{1,64}", self.tenant_header, re.ASCII):
            raise ConfigError(f"--tenant-header must be a header's name, got {self.tenant_header!r}")
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ConfigError("--allow-credentials needs named origins, not --allowed-origin '*'")

    def _check_files(self) -> None:
        if bool(self.ssl_keyfile) != bool(self.ssl_certfile):
            raise ConfigError("--ssl-keyfile and --ssl-certfile must be given together")
        for flag, path in (("--ssl-certfile", self.ssl_certfile), ("--ssl-keyfile", self.ssl_keyfile)):
            if path and not os.access(path, os.R_OK):
                raise ConfigError(f"{flag} {path} does not exist or is not readable")


FRONTEND_SETTINGS = (*declared(FrontendConfig), *declared(ApiKeySettings))
"""Every flag of api-frontend but --check-config."""
