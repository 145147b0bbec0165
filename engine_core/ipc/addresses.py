"""Which socket addresses are safe to bind? Private directories for ipc, keys for TCP beyond this machine."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator

from splitserve.engine_core.errors import ConfigError

_MAX_TRIES = 100


def is_ipc(address: str) -> bool:
    """Whether the address is ipc://PATH."""
    return address.startswith("ipc://")


def ipc_path(address: str) -> str:
    """Return PATH of ipc://PATH."""
    return address.removeprefix("ipc://")


def needs_keys(address: str) -> bool:
    """Whether the address reaches beyond this machine, so that only known peers may use it, encrypted."""
    if is_ipc(address):
        return False
    host = tcp_host(address)
    if host == "localhost":
        return False
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return True
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return not (mapped or parsed).is_loopback


def tcp_host(address: str) -> str:
    """Return HOST of tcp://HOST:PORT, without the brackets of an IPv6 address."""
    return address.removeprefix("tcp://").rpartition(":")[0].strip("[]")


def wants_ipv6(address: str) -> bool:
    """Whether a TCP socket must allow IPv6; on an IPv4 address it would only make libzmq print it as IPv6."""
    host = tcp_host(address)
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return host != "localhost"


def check_keys(address: str, has_keys: bool, allow_insecure_tcp: bool) -> None:
    """Refuse plain TCP beyond loopback unless the operator asked for it.

    Raises:
        ConfigError: names the address and both ways out.
    """
    if needs_keys(address) and not has_keys and not allow_insecure_tcp:
        raise ConfigError(
            f"{address} is reachable from other machines: create keys with `splitserve keys DIR` "
            "and pass --keys DIR, or pass --insecure on a network you trust"
        )


def make_private_directory(path: str) -> bool:
    """Make a directory that only this user may enter, or check that an existing one is safe for sockets.

    Returns:
        True if this call made the directory, so the caller has to remove it in the end.

    Raises:
        ConfigError: it cannot be made, belongs to another user, or others may write to it.
    """
    for _ in range(_MAX_TRIES):
        # Another server that is shutting down may remove the directory while we look at it.
        with contextlib.suppress(FileNotFoundError):
            return _make_or_check(path)
    why = "one above it leads nowhere, or another process removes it again and again"
    raise ConfigError(f"cannot create the directory {path}: {why}")


def _make_or_check(path: str) -> bool:
    try:
        os.makedirs(path, mode=0o700)
    except FileExistsError:
        _check_private(path)
        return False
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot create the directory {path}: {error.strerror}") from None
    return True


def _check_private(path: str) -> None:
    # lstat: a symlink planted in a shared directory must not lead us into somebody else's.
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode):
        raise ConfigError(f"the directory {path} is not a directory")
    if info.st_uid != os.geteuid():
        raise ConfigError(f"the directory {path} belongs to user {info.st_uid}, not to {os.geteuid()}")
    if info.st_mode & 0o022:
        raise ConfigError(
            f"the directory {path} is writable by others (mode {stat.S_IMODE(info.st_mode):o}): "
            "choose a directory of its own"
        )


@contextlib.contextmanager
def claim_ipc_path(path: str) -> Iterator[None]:
    """Hold the directory's lock while the caller binds; a file left by a dead process is removed first.

    libzmq unlinks whatever it finds before binding, so without this a second engine would silently take the
    address of a running one.

    Raises:
        ConfigError: another process listens there, or the path is not a socket.
    """
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        remove_stale_socket(path)
        yield
    finally:
        os.close(directory)


def remove_stale_socket(path: str) -> None:
    """Remove a socket file nobody listens on.

    Raises:
        ConfigError: somebody listens there, the path is not a socket, or it is not accessible.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot listen on {path}: {error.strerror}") from None
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} exists and is not a socket")
    if _someone_listens(path):
        raise ConfigError(f"another process already listens on {path}")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _someone_listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # With a full backlog a non-blocking connect fails with EAGAIN: somebody is listening all the same.
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True
