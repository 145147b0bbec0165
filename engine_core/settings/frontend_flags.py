"""The flags of api-frontend that `splitserve serve` passes on; a test compares them with the real ones."""

from __future__ import annotations

from splitserve.engine_core.settings.flag_values import parse_bytes, parse_count
from splitserve.engine_core.settings.flags import Flag, FlagTable


def _text(name: str, metavar: str, help_: str, *, many: bool = False) -> Flag:
    return Flag(name, _field(name), help_, metavar=metavar, many=many)


def _whole(name: str, help_: str) -> Flag:
    return Flag(name, _field(name), help_, parse_count, metavar="N")


def _size(name: str, help_: str) -> Flag:
    return Flag(name, _field(name), help_, parse_bytes, metavar="BYTES")


def _seconds(name: str, help_: str) -> Flag:
    return Flag(name, _field(name), help_, float, metavar="S")


def _switch(name: str, help_: str) -> Flag:
    return Flag(name, _field(name), help_, None)


def _field(name: str) -> str:
    return "frontend_" + name.removeprefix("--").replace("-", "_")


FRONTEND_FLAGS: FlagTable = {
    "API": (
        _text("--root-path", "PREFIX", "path under which a proxy publishes this server, stripped or not"),
        _switch("--strict", "answer 400 to unknown fields instead of ignoring them"),
        _text("--generation-config", "auto|none", "sampling defaults of the checkpoint, or OpenAI's"),
        _switch("--disable-docs", "no /docs and /openapi.json"),
        _whole("--max-logprobs", "logprobs per token that a request may ask for, 0 to 160"),
        _switch(
            "--return-tokens-as-token-ids",
            'write tokens of logprobs as "token_id:123" unless the request says no',
        ),
        _switch("--enable-force-include-usage", "end every stream with a usage chunk"),
        _switch("--enable-per-request-metrics", "tell the times of its tokens in the answer of a request"),
        _switch("--enable-tokenizer-info-endpoint", "serve /tokenizer_info, which shows the chat template"),
        _seconds("--sse-keep-alive", "comment in a stream after so long a silence; 0 never"),
        _text("--assets-dir", "DIR", "folder of tokenizer.json, if it is not the model's"),
    ),
    "security": (
        _text(
            "--api-key",
            "KEY",
            "accepted key, better of 16 characters or more; visible in the process list",
            many=True,
        ),
        _text("--api-key-file", "FILE", "accepted keys, one per line"),
        _text("--public-path", "PATH", "serve /health, /metrics or the like without a key", many=True),
        _text("--tenant-header", "NAME", "request header that names the tenant, set by a trusted proxy"),
        _text("--allowed-origin", "ORIGIN", "CORS origins", many=True),
        _text("--allowed-method", "METHOD", "CORS methods; GET and POST if none", many=True),
        _text("--allowed-header", "HEADER", "CORS headers; all if none", many=True),
        _switch("--allow-credentials", "let browsers send cookies across origins"),
        _text("--ssl-keyfile", "FILE", "TLS private key"),
        _text("--ssl-certfile", "FILE", "TLS certificate chain"),
    ),
    "limits of each frontend": (
        _size("--max-body-bytes", "largest request body, e.g. 4M"),
        _size("--max-body-memory", "all bodies together that are arriving or not yet decoded; 429 beyond"),
        _whole("--max-answer-values", "echoed tokens, token ids and logprobs in one answer; 400 beyond"),
        _seconds("--header-timeout", "time to send the headers"),
        _seconds("--body-timeout", "time to send the body"),
        _seconds("--write-stall", "time a client may leave its answer unread"),
        _whole("--max-open-requests", "requests in progress; 429 beyond"),
        _whole("--max-connections", "open connections"),
        _whole("--max-connections-per-address", "of one client address; 0 for no limit"),
        _seconds("--health-timeout", "time an engine has for a probe"),
        _seconds("--shutdown-timeout", "time open requests have after SIGTERM; default: --drain-timeout"),
    ),
}

# Not passed on: `serve` decides them itself.
OWN_FLAGS = frozenset(
    (
        *("--check-config", "--engine", "--frontend-id", "--keys", "--insecure"),
        *("--host", "--port", "--uds", "--fd", "--log-level"),
        *("--launch-dir", "--launch-number", "--launch-fd"),
    )
)
