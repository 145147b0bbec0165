"""Which clients may connect? CURVE keys: creating them, loading them, and the check within the busy loop."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import NamedTuple

import zmq
import zmq.auth
from zmq.utils import z85

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.addresses import make_private_directory
from splitserve.engine_core.process.logs import log_event

ENGINE = "engine"
FRONTEND = "frontend"
_ZAP_ADDRESS = "inproc://zeromq.zap.01"
_ZAP_VERSION = b"1.0"
MAX_REFUSED_TOLD = 256
_log = logging.getLogger("engine_core")


class ServerKeys(NamedTuple):
    """An engine's key pair and the client keys it accepts, all Z85 text as bytes."""

    public: bytes
    secret: bytes
    accepted: frozenset[bytes]


class ClientKeys(NamedTuple):
    """A frontend's key pair and the engine's public key, all Z85 text as bytes."""

    public: bytes
    secret: bytes
    server: bytes


def create_keys(directory: str) -> list[str]:
    """Write one key pair for engines and one for frontends into a private directory, for its owner only.

    Returns:
        The four paths, public and secret of each.

    Raises:
        ConfigError: a key of that name exists already, or the directory is not private.
    """
    make_private_directory(directory)
    existing = [
        path for name in (ENGINE, FRONTEND) for path in _paths(directory, name) if os.path.exists(path)
    ]
    if existing:
        raise ConfigError(f"{existing[0]} already exists: to replace its key, delete it first")
    previous = os.umask(0o077)
    try:
        return [path for name in (ENGINE, FRONTEND) for path in zmq.auth.create_certificates(directory, name)]
    finally:
        os.umask(previous)


def load_server_keys(directory: str) -> ServerKeys:
    """Load the engine's pair and every other public key (*.key) of the directory as an accepted client.

    Raises:
        ConfigError: a file is missing, unreadable, readable by others or not a key; or no client key exists.
    """
    public, secret = _load_pair(directory, ENGINE)
    others = [path for path in sorted(Path(directory).glob("*.key")) if path.name != f"{ENGINE}.key"]
    accepted = frozenset(_load_public(str(path)) for path in others)
    if not accepted:
        raise ConfigError(f"--keys {directory} contains no public key of a frontend (*.key)")
    return ServerKeys(public, secret, accepted)


def load_client_keys(directory: str) -> ClientKeys:
    """Load the frontend's pair and the engine's public key.

    Raises:
        ConfigError: a file is missing, unreadable, readable by others or not a key.
    """
    public, secret = _load_pair(directory, FRONTEND)
    return ClientKeys(public, secret, _load_public(_paths(directory, ENGINE)[0]))


def _paths(directory: str, name: str) -> tuple[str, str]:
    base = os.path.join(directory, name)
    return f"{base}.key", f"{base}.key_secret"


def _load_pair(directory: str, name: str) -> tuple[bytes, bytes]:
    path = _paths(directory, name)[1]
    try:
        if stat.S_IMODE(os.stat(path).st_mode) & 0o077:
            raise ConfigError(f"{path} is readable by others: run chmod 600 on it, or create new keys")
        public, secret = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot load the key {path}: {error}") from None
    if secret is None:
        raise ConfigError(f"{path} contains no secret key")
    return _check_key(public, path), _check_key(secret, path)


def _load_public(path: str) -> bytes:
    try:
        return _check_key(zmq.auth.load_certificate(path)[0], path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot load the key {path}: {error}") from None


def _check_key(key: bytes, path: str) -> bytes:
    try:
        if len(key) == 40 and len(z85.decode(key)) == 32:
            return key
    except (KeyError, ValueError):
        pass
    raise ConfigError(f"{path} does not contain a CURVE key")


class KeyGuard:
    """Answers libzmq's ZAP requests (may this client key connect?) from the loop that polls `socket`.

    The first refusal of each address, up to 256 addresses, is logged.

    One per zmq context, made before the first socket with keys is bound; used by the busy loop's thread only.
    """

    def __init__(self, context: zmq.Context, accepted: frozenset[bytes]) -> None:
        self._accepted = accepted
        self._told: set[str] = set()
        self.num_refused = 0
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(_ZAP_ADDRESS)

    def handle(self) -> None:
        """Answer every pending ZAP request; never blocks."""
        while self.socket.poll(0, zmq.POLLIN):
            frames = self.socket.recv_multipart()
            request_id = frames[1] if len(frames) > 1 else b""
            self.socket.send_multipart([_ZAP_VERSION, request_id, *self._verdict(frames), b""])

    def _verdict(self, frames: list[bytes]) -> list[bytes]:
        # version, request id, domain, address, identity, mechanism, credentials
        if len(frames) == 7 and frames[0] == _ZAP_VERSION and frames[5] == b"CURVE":
            key = z85.encode(frames[6]) if len(frames[6]) == 32 else b""
            if key in self._accepted:
                return [b"200", b"OK", key]
        self._refuse(frames[3].decode(errors="replace") if len(frames) > 3 else "")
        return [b"400", b"unknown key", b""]

    def _refuse(self, peer: str) -> None:
        self.num_refused += 1
        if peer not in self._told and len(self._told) < MAX_REFUSED_TOLD:
            self._told.add(peer)
            log_event(_log, logging.WARNING, "connection refused: its key is not in --keys", peer=peer)

    def close(self) -> None:
        """Close the socket; no new client with keys can connect afterwards."""
        self.socket.close()
