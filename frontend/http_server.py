"""One api-frontend process: its listening socket, its HTTP server, and what signals do to them.

signal                first                                              second
SIGTERM, SIGINT       no new connection; open requests get the           every connection is cut,
                      shutdown time, then an error as their last event   the process ends at once
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import time
from types import FrameType

import uvicorn
from fastapi import FastAPI

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.addresses import remove_stale_socket
from splitserve.engine_core.process.children import DeathSignals
from splitserve.engine_core.process.file_limit import raise_file_limit
from splitserve.engine_core.process.heartbeats import join_heartbeats
from splitserve.engine_core.process.kill_points import reach
from splitserve.engine_core.process.logs import log_event
from splitserve.frontend.app import AppOwners, create_app
from splitserve.frontend.config import FrontendConfig
from splitserve.frontend.engines.pool import EnginePool
from splitserve.frontend.http.connection.acceptor import Acceptor
from splitserve.frontend.http.connection.dead_peers import end_dead_connections
from splitserve.frontend.http.connection.http_protocol import protocol_factory
from splitserve.frontend.http.connection.uvicorn_adapter import UvicornServer
from splitserve.frontend.http.limits import EndReason
from splitserve.frontend.launch import Launch, join_launch

_log = logging.getLogger("frontend")

BACKLOG = 2048
# Longer than the idle time of common load balancers (60 s), so that they never reuse a link we are closing.
KEEP_ALIVE_S = 75
# What remains of a request after its shutdown time: its last words, and the engine's abort.
GRACE_S = 5
# How long the event loop may stand still. Loading a large tokenizer may hold it for seconds.
SERVING_SILENCE_S = 5.0
STARTING_SILENCE_S = 30.0
BEAT_S = 0.25


def run_server(config: FrontendConfig) -> int:
    """Serve until a signal; returns the exit code: 0 after draining, 128 + N when a second signal N ended it.

    Raises:
        ConfigError: the address or the engine keys cannot be used.
    """
    raise_file_limit()
    pool = make_pool(config)
    launch = join_launch(config)
    app = create_app(config, pool, launch)
    listener = open_listener(config)
    server = FrontendServer(app, pool, config, describe(config, listener), launch)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
        if config.uds:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(config.uds)
    return server.exit_code


class FrontendServer(UvicornServer):
    """uvicorn's server with our signals.

    Attributes:
        exit_code: of the process, known when run() has returned.
    """

    def __init__(
        self,
        app: FastAPI,
        pool: EnginePool,
        config: FrontendConfig,
        address: str,
        launch: Launch | None = None,
    ) -> None:
        self._owners: AppOwners = app.state.owners
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=protocol_factory(self._owners.connections),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                # Said here, or uvicorn takes both from the environment.
                workers=1,
                forwarded_allow_ips="",
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=round(config.shutdown_timeout_s) + GRACE_S,
                backlog=BACKLOG,
                ssl_keyfile=config.ssl_keyfile or None,
                ssl_certfile=config.ssl_certfile or None,
            )
        )
        self.exit_code = 0
        self._pool = pool
        self._launch = launch
        self._shutdown_timeout_s = config.shutdown_timeout_s
        self._write_stall_s = config.write_stall_s
        self._address = address
        self._death_signals = DeathSignals()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heart = join_heartbeats(config.heartbeat_fd, config.launch_number, STARTING_SILENCE_S)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Connect to the engines, start the application, then accept.

        Raises:
            ConfigError: an engine's address or the keys cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        for listener in sockets or ():
            end_dead_connections(listener, self._write_stall_s)
        await self._pool.start()
        if self._launch is not None and self._launch.others and sockets:
            await super().startup([])
            self._share(sockets[0], self._launch)
        else:
            await super().startup(sockets)
        # What start-up made lives as long as the process; collections need not look at it again.
        gc.collect()
        gc.freeze()
        self._beat()
        reach("frontend.started")
        log_event(_log, logging.INFO, "listening", address=self._address, pid=os.getpid())

    def _share(self, listener: socket.socket, launch: Launch) -> None:
        """Accept on a socket that others accept on as well."""
        acceptor = Acceptor(listener, launch.counts, launch.number, self.make_connection, self.config.ssl)
        self._owners.connections.on_leave = acceptor.on_closed
        self.add_listener(acceptor)

    def _beat(self) -> None:
        assert self._loop is not None, "called by the loop"
        if self._pool.models():
            self._heart.limit(SERVING_SILENCE_S)
            self._heart.serve(True)
        self._heart.beat()
        self._loop.call_later(BEAT_S, self._beat)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, let requests end, then leave the engines."""
        try:
            await super().shutdown(sockets)
            if self.force_exit:
                # uvicorn leaves it out then, and the loop's end cancels the application with a traceback.
                await self.end_app()
        finally:
            await self._pool.close()
            # The loop ends in a moment; whoever asked for it waits only so long.
            self._heart.leave()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal; called between two byte codes of the main thread."""
        if self._death_signals.is_repetition(time.monotonic()):
            return
        again = self.should_exit
        self.should_exit = True
        if again:
            self.force_exit = True
            self.exit_code = 128 + sig
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cut if again else self._drain, signal.Signals(sig).name)

    def _drain(self, name: str) -> None:
        assert self._loop is not None, "called by the loop"
        self._owners.health.shutting_down = True
        open_now = len(self._owners.requests)
        timeout_s = self._shutdown_timeout_s
        log_event(_log, logging.INFO, "draining", signal=name, requests=open_now, timeout_s=timeout_s)
        self._loop.call_later(self._shutdown_timeout_s, self._owners.requests.end_all, EndReason.SHUTDOWN)

    def _cut(self, name: str) -> None:
        log_event(_log, logging.INFO, "stopping_at_once", signal=name)
        # Those in the background have no connection.
        self._owners.requests.end_all(EndReason.SHUTDOWN)
        self.cut_connections()


def open_listener(config: FrontendConfig) -> socket.socket:
    """Open the listening socket that the configuration names.

    Raises:
        ConfigError: the address is in use or not allowed, or the descriptor is not a listening socket.
    """
    try:
        if config.fd is not None:
            return _inherited(config.fd)
        if config.uds:
            return _unix(config.uds)
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except UnicodeError:
        raise ConfigError(f"cannot listen on {_target(config)}: not a host name") from None
    except OSError as error:
        raise ConfigError(f"cannot listen on {_target(config)}: {error.strerror or error}") from None


def _inherited(fd: int) -> socket.socket:
    listener = socket.socket(fileno=fd)
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.detach()
        raise ConfigError(f"--fd {fd} is not a listening socket")
    return listener


def _unix(path: str) -> socket.socket:
    remove_stale_socket(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        # The group may connect, as a proxy running under its own user needs; others may not.
        os.chmod(path, 0o660)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def describe(config: FrontendConfig, listener: socket.socket) -> str:
    """Return the URL or path that clients reach the listener at."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    scheme = "https" if config.ssl_certfile else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def make_pool(config: FrontendConfig) -> EnginePool:
    """Return the pool of the configured engines, not yet started."""
    return EnginePool(
        config.engines,
        config.frontend_id,
        curve_dir=config.curve_dir,
        assets_dir=config.assets_dir,
        chat_template=config.chat_template,
        allow_insecure_tcp=config.allow_insecure_tcp,
        max_migrations=config.max_migrations,
        failover_wait_s=config.failover_wait_s,
    )


def _target(config: FrontendConfig) -> str:
    if config.fd is not None:
        return f"descriptor {config.fd}"
    return config.uds or f"{config.host} port {config.port}"
