"""How the listening HTTP socket is bound that all api-frontends share, before any process is started."""

from __future__ import annotations

import errno
import os
import socket

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.addresses import remove_stale_socket

BACKLOG = 2048


def bind_tcp(host: str, port: int) -> socket.socket:
    """Listen on host and port; port 0 takes a free one.

    Raises:
        ConfigError: the port is in use or not allowed, or the host is not an address of this machine.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return socket.create_server(found[0][4][:2], family=found[0][0], backlog=BACKLOG)
    except UnicodeError:
        # An impossible host name is refused before it is looked up.
        raise ConfigError(f"cannot listen on {host} port {port}: not a host name") from None
    except OSError as error:
        raise ConfigError(_reason(error, host, port)) from None


def _reason(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use by another process: choose another with --port"
    if error.errno == errno.EACCES:
        return f"this user may not listen on port {port}: choose one above 1023 with --port"
    return f"cannot listen on {host} port {port}: {error.strerror or error}"


def bind_unix(path: str) -> socket.socket:
    """Listen on a Unix socket; a socket file left by a dead process is replaced.

    Raises:
        ConfigError: another process listens there, or the file cannot be created.
    """
    remove_stale_socket(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        # The group may connect, for a proxy that runs as its own user; others may not.
        os.chmod(path, 0o660)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {os.path.abspath(path)}: {error.strerror or error}") from None
    return listener
