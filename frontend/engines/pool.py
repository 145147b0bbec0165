"""Several engine-cores as one: which are ready, which one takes a request, and how the request runs there."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

import zmq

from splitserve.engine_core.errors import EngineUnavailableError
from splitserve.engine_core.ipc.curve import load_client_keys
from splitserve.engine_core.ipc.wire import EngineView, LogLevelName
from splitserve.engine_core.process.version import software_version
from splitserve.frontend.engines import questions
from splitserve.frontend.engines.adapter_calls import AdapterCalls
from splitserve.frontend.engines.assets_cache import AssetsCache
from splitserve.frontend.engines.connection.calls import SHUTTING_DOWN
from splitserve.frontend.engines.connection.client import EngineClient
from splitserve.frontend.engines.connection.session import EngineSession
from splitserve.frontend.engines.dispatch import Dispatcher, Target
from splitserve.frontend.engines.failover.driver import FailoverDriver
from splitserve.frontend.engines.failover.owner import Failover
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.engines.preparation import Preparation, needs_preparation
from splitserve.frontend.engines.readiness import Readiness
from splitserve.frontend.engines.replica import EngineReplica
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.engines.served_models import ServedModels
from splitserve.frontend.engines.status import EngineStatus, Explanation, PoolStats
from splitserve.frontend.engines.stream.engine_generation import Generation

MAX_MIGRATIONS = 3
FAILOVER_WAIT_S = 30.0


class EnginePool:
    """The engines of one frontend process; all methods belong to the event loop that called start().

    Attributes:
        adapters: loads and unloads them on all engines.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        frontend_id: str,
        *,
        curve_dir: str = "",
        assets_dir: str = "",
        chat_template: str = "",
        allow_insecure_tcp: bool = False,
        max_migrations: int = MAX_MIGRATIONS,
        failover_wait_s: float = FAILOVER_WAIT_S,
    ) -> None:
        """Create the pool; start() connects.

        Args:
            addresses: ZMQ addresses of engine-cores, ipc://PATH or tcp://HOST:PORT; at least one.
            frontend_id: unique per frontend process; names it in the engines' logs and leases.
            curve_dir: folder with this frontend's key pair and the engine's public key; "" for none.
            assets_dir: folder of the tokenizer and templates; "" means the path that the engine names.
            chat_template: name or file of the template; "" means that of the folder.
            allow_insecure_tcp: permit TCP beyond loopback without keys.
            max_migrations: engines that may be lost under a request before it ends in an error.
            failover_wait_s: how long a request whose engine is lost waits for one; 0 = not at all.
        """
        assert addresses, "a pool needs at least one engine"
        self._addresses = list(dict.fromkeys(addresses))
        self._frontend_id = frontend_id
        self._curve_dir = curve_dir
        self._assets = AssetsCache(assets_dir, chat_template)
        self._allow_insecure_tcp = allow_insecure_tcp
        self._preparation = Preparation()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._replicas: list[EngineReplica] = []
        self._readiness = Readiness(self._replicas, failover_wait_s)
        self._models = ServedModels(self._replicas, self._readiness)
        self.adapters = AdapterCalls(self._replicas, self._readiness)
        self._stats = PoolStats()
        self._failover = Failover(
            self._replicas, time.monotonic, max_migrations=max_migrations, wait_s=failover_wait_s
        )
        self._driver = FailoverDriver(self._failover)
        self._dispatcher = Dispatcher(self._find_targets, self._failover, self._stats)

    async def start(self) -> None:
        """Connect to all engines; returns at once, before they are ready.

        Raises:
            ConfigError: an address or the keys are not usable.
        """
        keys = load_client_keys(self._curve_dir) if self._curve_dir else None
        self._readiness.start()
        self._driver.start()
        self._context = zmq.Context()
        try:
            for address in self._addresses:
                session = EngineSession(self._frontend_id, software_version(), address)
                client = EngineClient(
                    self._context, session, keys, allow_insecure_tcp=self._allow_insecure_tcp
                )
                replica = EngineReplica(client, self._assets, self._failover, self._note_change)
                replica.start()
                self._replicas.append(replica)
        except BaseException:
            await self.close()
            raise

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until one engine is ready.

        Raises:
            EngineUnavailableError: none was ready in time, or all refused; the message gives their states.
        """
        await self._readiness.wait(timeout_s)

    async def settle(self, model: str = "", max_wait_s: float = math.inf) -> float:
        """If no engine is ready for a model, wait while that may change soon (see Readiness.settle())."""
        return await self._readiness.settle(model, max_wait_s)

    async def close(self) -> None:
        """Abort this frontend's open sequences and close the sockets; safe to call twice."""
        replicas = self._replicas.copy()
        self._replicas.clear()
        self._driver.close()
        self._readiness.close()
        self._failover.close(EngineUnavailableError(SHUTTING_DOWN))
        for replica in replicas:
            await replica.close()
        await self._assets.close()
        self._preparation.close()
        context, self._context = self._context, None
        if context is not None:
            # Waits until the last aborts have been sent, at most the sockets' linger time.
            try:
                await asyncio.to_thread(context.term)
            except RuntimeError:
                # No thread can be started while the interpreter is shutting down.
                context.term()

    def models(self) -> list[ServedModel]:
        """Return the models of ready or draining engines, each once, in order of address."""
        return self._models.all()

    def find_model(self, name: str) -> ServedModel:
        """Return a served model by any of its names; "" is the first one.

        Raises:
            InvalidRequestError: status 404, code "model_not_found": no engine serves that name, or did.
            EngineUnavailableError: no engine is ready at all, or those that served that name are away.
        """
        return self._models.find(name)

    async def open(
        self, model: str, requests: Sequence[GenerationRequest], on_ready: Callable[[], None]
    ) -> list[Generation]:
        """Send the prompts of one client's request to the engines; the caller closes each generation.

        Each engine accepts or rejects its share as a whole; a rejection by any of them reaches the caller.

        Args:
            model: any name of a served model; "" is the first one.
            requests: checked against the model; one generation is returned for each.
            on_ready: called by the event loop when take() may return something or raise an error; once for
                everything that has arrived, for however many sequences. It must not raise.

        Raises:
            InvalidRequestError: a field is wrong.
            ContextLengthError: prompt and max_tokens do not fit the context.
            OverloadedError: this frontend has too many open sequences.
            EngineUnavailableError: no engine is ready.
            EngineRequestError, QueueTimeoutError: a timeout of the request passed while none was ready.
        """
        # Before choosing engines: these may wait, and a chosen engine could be gone by then.
        requests = await self._readiness.hold(requests, model)
        if any(needs_preparation(request) for request in requests):
            assets = self.find_model(model).assets
            requests = [await self._preparation.prepare(request, assets) for request in requests]
            requests = await self._readiness.hold(requests, model)
        return self._dispatcher.open(model, requests, on_ready)

    async def generate(self, model: str, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        """Run one request and yield its deltas until each of its n sequences has a finish_reason.

        Closing the generator (aclose, or cancelling the task that waits in it) immediately aborts what is
        still open on the engine; a caller that may leave early holds it in contextlib.aclosing. When the
        caller reads slowly, deltas are joined.

        Raises:
            InvalidRequestError: a field is wrong (param, code and status are kept if the engine found it).
            ContextLengthError: prompt and max_tokens do not fit the context.
            OverloadedError: the engine's queue is full; has retry_after_s.
            EngineUnavailableError: no engine is ready, or the engine died meanwhile.
            EngineRequestError: the engine ended this request because of an internal error.
        """
        changed = asyncio.Event()
        (opened,) = await self.open(model, [request], changed.set)
        with contextlib.closing(opened) as generation:
            while not generation.finished:
                await changed.wait()
                changed.clear()
                for delta in generation.take():
                    yield delta

    def status(self) -> list[EngineStatus]:
        """Return the state of each engine, in order of address."""
        return [replica.status() for replica in self._replicas]

    async def ping(self, timeout_s: float) -> list[EngineStatus]:
        """Ping each ready engine through its busy loop; return the status of those that reply, at least one.

        Raises:
            EngineUnavailableError: no engine is ready, or none replied in time.
        """
        return await questions.ping(self._serving(), timeout_s)

    def stats(self) -> PoolStats:
        """Return a snapshot of this process's counters."""
        num_displaced = self._failover.num_displaced
        stats = replace(
            self._stats, failover=self._failover.stats, num_displaced=num_displaced, num_open=num_displaced
        )
        for replica in self._replicas:
            replica.count_into(stats)
        return stats

    async def explain(self, request_ids: Sequence[str], tenant: str, timeout_s: float) -> list[Explanation]:
        """Ask every ready engine for the state of its open requests, those of all frontends.

        Args:
            request_ids: "ID" also matches its parts "ID-0" and so on; empty means all.
            tenant: report only its requests; "" means everybody's.
            timeout_s: how long to wait for an engine, in seconds.

        Raises:
            EngineUnavailableError: no engine is ready.
        """
        return await questions.explain(self._serving(), request_ids, tenant, timeout_s)

    async def view(self, tenant: str, timeout_s: float) -> dict[str, EngineView]:
        """Return what the engines that reply in time show to who watches, a tenant or "", by address."""
        return await questions.view([each for each in self._replicas if each.served], tenant, timeout_s)

    async def reset_prefix_cache(self, timeout_s: float) -> int:
        """Let every ready engine forget its cached prefixes; return how many blocks held one.

        Raises:
            EngineUnavailableError: no engine is ready, or one did not do so within timeout_s seconds.
        """
        return await questions.reset_prefix_cache(self._serving(), timeout_s)

    async def set_log_level(self, level: LogLevelName, timeout_s: float) -> dict[str, bool]:
        """Have all engines, their workers and frontends log from a level on; return who does, by address."""
        return await questions.set_log_level(self._replicas, level, timeout_s)

    async def rest(self, level: int, timeout_s: float) -> None:
        """Have every ready engine sleep, or wake up; raises EngineUnavailableError. See questions.rest()."""
        await questions.rest(self._serving(), level, timeout_s)

    def _serving(self) -> list[EngineReplica]:
        """Return the engines that are ready, at least one."""
        if serving := [replica for replica in self._replicas if replica.served]:
            return serving
        raise self._readiness.nothing_ready()

    def _note_change(self) -> None:
        # Requests that are displaced go on before new ones are let in.
        self._driver.kick()
        self._readiness.note_change()

    def _find_targets(self, model: str) -> list[Target]:
        """Return the engines that accept requests for a model, at least one."""
        wanted = self.find_model(model)
        serving = [(replica, replica.served) for replica in self._replicas if replica.takes_requests]
        targets = [
            Target(replica, found)
            for replica, served in serving
            if served is not None
            and served.root == wanted.root
            and (found := served.named(wanted.names[0])) is not None
        ]
        if not targets:
            raise self._readiness.nothing_ready()
        return targets
