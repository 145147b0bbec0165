"""API keys: every route needs one except those the operator opened; decided by the path the router sees."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import NamedTuple

from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from splitserve.frontend.config import FrontendConfig
from splitserve.frontend.http.errors import HttpError, error_response

ALWAYS_PUBLIC = "/live"
# Enough of the hash to tell tenants apart; the key cannot be recovered from it.
TENANT_CHARS = 16
_TENANT = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
# Matches every path; used only to see which path was matched.
_ANY_PATH = Route("/{path:path}", Response, methods=None)


class KeyPaths(NamedTuple):
    """Paths with keys of another kind than the rest.

    Attributes:
        public: need no key, whatever the operator opened.
        admin: need an admin key; no other key opens them, and it opens no others.
    """

    public: frozenset[str] = frozenset()
    admin: frozenset[str] = frozenset()


NO_PATHS = KeyPaths()


class AuthMiddleware:
    """Responds 401 to requests without a valid key; puts the others' tenant in scope["state"]."""

    def __init__(
        self,
        app: ASGIApp,
        config: FrontendConfig,
        paths: KeyPaths = NO_PATHS,
    ) -> None:
        """Args: config names the keys, paths what they open."""
        self._app = app
        self._hashes = tuple(bytes.fromhex(digest) for digest in config.api_key_hashes)
        self._admin_hashes = tuple(bytes.fromhex(digest) for digest in config.admin_key_hashes)
        self._admin = paths.admin
        self._tenant_header = config.tenant_header.lower().encode()
        self._public = frozenset((ALWAYS_PUBLIC, *config.public_paths)) | paths.public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request."""
        if scope["type"] == "http" and (self._hashes or self._admin):
            path = routed_path(scope)
            is_admin = path in self._admin
            hashes = self._admin_hashes if is_admin else self._hashes
            if is_admin or (hashes and path not in self._public):
                key_hash = _match(presented_key(scope), hashes)
                if key_hash is None:
                    kind = "admin" if is_admin else "API"
                    error = HttpError(
                        401,
                        "invalid_api_key",
                        f"A valid {kind} key is required: Authorization: Bearer KEY, or x-api-key: KEY.",
                    )
                    await error_response(error)(scope, receive, send)
                    return
                if not is_admin:
                    scope.setdefault("state", {})["tenant"] = key_hash.hex()[:TENANT_CHARS]
        if scope["type"] == "http" and self._tenant_header:
            try:
                named = named_tenant(scope, self._tenant_header)
            except HttpError as error:
                await error_response(error)(scope, receive, send)
                return
            if named:
                scope.setdefault("state", {})["tenant"] = named
        await self._app(scope, receive, send)


def _match(key: bytes | None, hashes: tuple[bytes, ...]) -> bytes | None:
    """Compare with every key in constant time, whichever matches and whether any does."""
    presented = hashlib.sha256(key or b"").digest()
    found: bytes | None = None
    for known in hashes:
        if hmac.compare_digest(presented, known):
            found = known
    return None if key is None else found


def routed_path(scope: Scope) -> str | None:
    """Return the path that the router compares with its routes, None if no route could match it.

    A route that matches everything provides it, so the path is never parsed in a second way here.
    """
    _, matched = _ANY_PATH.matches(scope)
    return "/" + matched["path_params"]["path"] if matched else None


def named_tenant(scope: Scope, header: bytes) -> str:
    """Return the tenant that a header names, "" if the header is absent.

    Raises:
        HttpError: 400 "invalid_tenant": it appears twice, or is not 1 to 64 letters, digits and . _ : -
    """
    values = [value for name, value in scope["headers"] if name == header]
    if not values:
        return ""
    text: str = values[0].decode("latin-1")
    if len(values) > 1 or _TENANT.fullmatch(text) is None:
        raise HttpError(
            400,
            "invalid_tenant",
            "The tenant header must be given once, as 1 to 64 letters, digits and . _ : -",
        )
    return text


def presented_key(scope: Scope) -> bytes | None:
    """Return the bearer token of the one Authorization header, or, without that, the one x-api-key.

    None if there is neither, if the header is repeated, or for another scheme than Bearer.
    """
    headers = scope["headers"]
    values = [value for name, value in headers if name == b"authorization"]
    if not values:
        keys = [value.strip() for name, value in headers if name == b"x-api-key"]
        return (keys[0] or None) if len(keys) == 1 else None
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(b" ")
    token = token.strip()
    return token if scheme.lower() == b"bearer" and token else None
