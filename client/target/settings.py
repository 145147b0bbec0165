"""How commands are told which server to ask, and with what key."""

# No "from __future__ import annotations": --help would then have to evaluate each declaration.
import os
import re
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import urlsplit

from splitserve.client.http.address import Address
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.setting import Setting, Settings

DEFAULT_URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "OPENAI_API_KEY"


class ConnectionSettings(Settings, frozen=True, kw_only=True):
    """How a server is reached that is not the command's own."""

    api_key: Annotated[
        str,
        Setting("key to send; visible in the process list", "server", metavar="KEY", default=KEY_VARIABLE),
    ] = ""
    header: Annotated[
        tuple[str, ...], Setting("HTTP headers to send with each request", "server", metavar="NAME=VALUE")
    ] = ()
    insecure: Annotated[bool, Setting("do not check the certificate of an https server", "server")] = False
    timeout_s: Annotated[
        float, Setting("longest silence of the server, in seconds", "server", low=1, high=86400)
    ] = 600.0

    def validate(self) -> None:
        """Check every value against its declaration; raises ConfigError, which names the flag."""
        super().validate()
        read_headers(self.header)

    def address(self, url: str) -> Address:
        """Return the address of a server at a URL, with or without /v1, or at unix:PATH.

        Raises:
            ConfigError: it is neither.
        """
        key = self.api_key or os.environ.get(KEY_VARIABLE, "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        root, prefix, socket_path = split_url(url)
        return Address(
            url=root,
            prefix=prefix,
            socket_path=socket_path,
            headers=headers | read_headers(self.header),
            verifies=not self.insecure,
            timeout_s=self.timeout_s,
        )


class TargetSettings(ConnectionSettings, frozen=True, kw_only=True):
    """Which server, and which of its models."""

    url: Annotated[
        str,
        Setting(
            "the server, with or without /v1, or unix:PATH", "server", metavar="URL", default=DEFAULT_URL
        ),
    ] = ""
    served_model: Annotated[
        str,
        Setting(
            "name of the model to ask for", "server", flag="--model", metavar="NAME", default="the first one"
        ),
    ] = ""
    serve_flags: Annotated[
        str,
        Setting(
            "flags of `splitserve serve` for a server of the command's own, in one word",
            "server",
            metavar="FLAGS",
            default="none",
        ),
    ] = ""


def split_url(url: str) -> tuple[str, str, str]:
    """Return the base of a server's paths, the prefix of OpenAI's API, and the path of a Unix socket or "".

    Raises:
        ConfigError: it is no http or https URL, nor unix:PATH.
    """
    if url.startswith("unix:") and len(url) > 5:
        return "http://localhost", "/v1", url.removeprefix("unix:")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"a server is http://HOST:PORT, https://HOST or unix:PATH, got {url!r}")
    root = url.rstrip("/")
    if root.endswith("/v1"):
        return root.removesuffix("/v1"), "/v1", ""
    # A longer path is the base of a service that has none of our other endpoints.
    return root, "" if parts.path.strip("/") else "/v1", ""


def read_headers(pairs: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE pairs by name.

    Raises:
        ConfigError: one has another form.
    """
    headers = {}
    for pair in pairs:
        match = re.fullmatch(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100})=([^\r\n]{0,8000})", pair)
        if match is None:
            raise ConfigError(f"--header takes NAME=VALUE, got {pair!r}")
        headers[match[1]] = match[2]
    return headers
