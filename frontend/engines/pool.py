"""Several engine-cores as one: which are there, which one takes a request, and the request's life on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

import zmq

from splitserve.engine_core.errors import EngineUnavailableError, InvalidRequestError
from splitserve.engine_core.ipc.curve import load_client_keys
from splitserve.frontend.engines.connection.client import EngineClient
from splitserve.frontend.engines.connection.session import EngineState
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.engines.replica import AssetsCache, PoolMember, make_member
from splitserve.frontend.engines.spreading import spread
from splitserve.frontend.engines.start import open_on
from splitserve.frontend.engines.status import EngineStatus, Explanation, PoolStats, ServedModel
from splitserve.frontend.engines.stream.engine_generation import Generation
from splitserve.frontend.text.bad_words import spell_bad_words

# How long settle() waits at most: from start() on for the first word of an engine, and for a tokenizer.
CONNECT_WAIT_S = 1.0
TOKENIZER_WAIT_S = 5.0

__all__ = ["EnginePool", "EngineStatus", "PoolStats", "ServedModel"]


class EnginePool:
    """The engines of one frontend process; all methods belong to the event loop that called start()."""

    def __init__(
        self,
        addresses: Sequence[str],
        frontend_id: str,
        *,
        curve_dir: str = "",
        assets_dir: str = "",
        allow_insecure_tcp: bool = False,
    ) -> None:
        """Prepare; nothing connects before start().

        Args:
            addresses: ZMQ addresses of engine-cores, ipc://PATH or tcp://HOST:PORT; at least one.
            frontend_id: unique per frontend process; names it in the engines' logs and leases.
            curve_dir: folder with this frontend's key pair and the engine's public key; "" for none.
            assets_dir: where tokenizer and templates lie if not at the path the engine names; "" takes that.
            allow_insecure_tcp: permit TCP beyond loopback without keys.
        """
        assert addresses, "a pool needs at least one engine"
        self._addresses = list(dict.fromkeys(addresses))
        self._frontend_id = frontend_id
        self._curve_dir = curve_dir
        self._assets = AssetsCache(assets_dir)
        self._allow_insecure_tcp = allow_insecure_tcp
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._members: list[PoolMember] = []
        self._stats = PoolStats()
        self._changed = asyncio.Event()
        self._started_s = 0.0

    async def start(self) -> None:
        """Connect to all engines; returns at once, they become ready in their own time.

        Raises:
            ConfigError: an address or the keys are not usable.
        """
        keys = load_client_keys(self._curve_dir) if self._curve_dir else None
        self._started_s = asyncio.get_running_loop().time()
        self._context = zmq.Context()
        try:
            for address in self._addresses:
                member = make_member(
                    self._context,
                    address,
                    self._frontend_id,
                    keys,
                    self._assets,
                    self._changed.set,
                    allow_insecure_tcp=self._allow_insecure_tcp,
                )
                member.client.start()
                self._members.append(member)
        except BaseException:
            await self.close()
            raise

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until one engine is ready.

        Raises:
            EngineUnavailableError: none was in time, or all refuse; the message tells each one's state.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not any(member.served for member in self._members):
                    if all(member.state == "refused" for member in self._members):
                        break
                    self._changed.clear()
                    await self._changed.wait()
        if not any(member.served for member in self._members):
            raise self._nothing_ready()

    async def settle(self) -> None:
        """Wait, if no engine is ready, as long as that may be for reasons of this frontend alone.

        It has just begun to connect, or loads the tokenizer of a ready engine; another frontend behind the
        same address would serve meanwhile what this one would refuse. Returns in any case.
        """
        end_s = asyncio.get_running_loop().time() + TOKENIZER_WAIT_S
        while not any(member.served for member in self._members):
            if any(member.loads_assets for member in self._members):
                until_s = end_s
            elif any(member.session.state is EngineState.CONNECTING for member in self._members):
                until_s = self._started_s + CONNECT_WAIT_S
            else:
                return
            self._changed.clear()
            try:
                async with asyncio.timeout_at(until_s):
                    await self._changed.wait()
            except TimeoutError:
                return

    async def close(self) -> None:
        """Abort what is open on the engines, and close the sockets; safe to call twice."""
        members, self._members = self._members, []
        for member in members:
            await member.close()
        await self._assets.close()
        context, self._context = self._context, None
        if context is not None:
            # Waits until the last aborts have left, at most the sockets' linger time.
            try:
                await asyncio.to_thread(context.term)
            except RuntimeError:
                # No thread can be started any more while the interpreter ends.
                context.term()

    def models(self) -> list[ServedModel]:
        """Return the models of ready or draining engines, each once, in order of address."""
        by_name = {
            member.served.names[0]: member.served for member in reversed(self._members) if member.served
        }
        return list(reversed(by_name.values()))

    def find_model(self, name: str) -> ServedModel:
        """Return a served model by any of its names; "" is the first one.

        Raises:
            InvalidRequestError: status 404, code "model_not_found": no engine serves that name.
            EngineUnavailableError: no engine is ready at all.
        """
        models = self.models()
        if not models:
            raise self._nothing_ready()
        for model in models:
            if not name or name in model.names:
                return model
        error = InvalidRequestError(f"the model {name[:200]!r} does not exist", "model", "model_not_found")
        error.status = 404
        raise error

    async def open(
        self, model: str, requests: Sequence[GenerationRequest], on_ready: Callable[[], None]
    ) -> list[Generation]:
        """Send the prompts of one client's request to the engines; the caller closes what is returned.

        Each engine takes its part of them as one: all or none. If one does not, the caller hears of it.

        Args:
            model: any name of a served model; "" is the first one.
            requests: not yet checked; one generation is returned for each.
            on_ready: called by the event loop when something may be there to take, or an error to be raised;
                once for all that has arrived, however many sequences got some. It must not raise.

        Raises:
            InvalidRequestError: a field is wrong.
            ContextLengthError: prompt and max_tokens do not fit the context.
            OverloadedError: this frontend has too many open sequences.
            EngineUnavailableError: no engine is ready.
        """
        # Before the choice of engines, which may not be there any more after a wait.
        requests = [await self._spell_bad_words(model, request) for request in requests]
        candidates = self._candidates(model)
        parts = spread(
            [member.num_open for member, _ in candidates], [request.sampling.n for request in requests]
        )
        generations: dict[int, Generation] = {}
        try:
            for (member, served), part in zip(candidates, parts, strict=True):
                mine = [requests[i] for i in part]
                choose = self._keep_engine(model, member)
                opened = open_on(member.client, served, mine, on_ready, choose, self._stats)
                generations |= zip(part, opened, strict=True)
        except BaseException:
            for generation in generations.values():
                generation.close()
            raise
        return [generations[i] for i in range(len(requests))]

    async def generate(self, model: str, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        """Run one request and yield its deltas until each of its n sequences has a finish_reason.

        Closing the generator (aclose, or cancelling the task that waits in it) aborts what is still open on
        the engine at once; whoever may leave it early holds it in contextlib.aclosing. When the caller reads
        slowly, deltas join.

        Raises:
            InvalidRequestError: a field is wrong (also found by the engine: param, code and status are kept).
            ContextLengthError: prompt and max_tokens do not fit the context.
            OverloadedError: the engine's queue is full; has retry_after_s.
            EngineUnavailableError: no engine is ready, or the engine died meanwhile.
            EngineRequestError: the engine ended this request because of a fault of its own.
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
        return [member.status() for member in self._members]

    async def ping(self, timeout_s: float) -> list[EngineStatus]:
        """Send each ready engine a ping through its busy loop and wait for all answers.

        Returns:
            The status of the engines that answered, at least one.

        Raises:
            EngineUnavailableError: no engine is ready, or none answered in time.
        """
        members = [member for member in self._members if member.served]
        if not members:
            raise self._nothing_ready()
        answered = await asyncio.gather(*(member.answers(timeout_s) for member in members))
        alive = [member.status() for member, ok in zip(members, answered, strict=True) if ok]
        if not alive:
            raise EngineUnavailableError(f"no engine answered a ping within {timeout_s:g} s")
        return alive

    def stats(self) -> PoolStats:
        """Return the counters of this process, as a copy of now."""
        sessions = [member.session for member in self._members]
        return PoolStats(
            num_open=sum(len(session.sequences) for session in sessions),
            requests_started=self._stats.requests_started,
            requests_finished=self._stats.requests_finished,
            requests_aborted=self._stats.requests_aborted,
            requests_failed=self._stats.requests_failed,
            engines_lost=sum(session.num_losses for session in sessions),
            stale_outputs=sum(session.sequences.stale_outputs for session in sessions),
            protocol_errors=sum(member.client.protocol_errors for member in self._members),
        )

    async def explain(self, request_ids: Sequence[str], tenant: str, timeout_s: float) -> list[Explanation]:
        """Ask every ready engine where open requests stand, of all frontends.

        Args:
            request_ids: "ID" also names its parts "ID-0" and so on; none means all.
            tenant: only its requests are told of; "" means everybody's.
            timeout_s: time an engine has to answer.

        Raises:
            EngineUnavailableError: no engine is ready.
        """
        members = [member for member in self._members if member.served]
        if not members:
            raise self._nothing_ready()
        return await asyncio.gather(*(m.explain(request_ids, tenant, timeout_s) for m in members))

    async def _spell_bad_words(self, model: str, request: GenerationRequest) -> GenerationRequest:
        if not request.sampling.bad_words:
            return request
        request.sampling.validate()
        tokenizer = self.find_model(model).assets.tokenizer
        return replace(request, sampling=await spell_bad_words(request.sampling, tokenizer))

    def _keep_engine(self, model: str, member: PoolMember) -> Callable[[], EngineClient]:
        """Return a choice of one engine while that takes requests: its prefix cache knows the beams."""

        def choose() -> EngineClient:
            nonlocal member
            if not member.takes_requests:
                member, _ = self._pick(model)
            return member.client

        return choose

    def _pick(self, model: str) -> tuple[PoolMember, ServedModel]:
        """Return the least busy engine that takes requests for a model."""
        return min(self._candidates(model), key=lambda candidate: candidate[0].num_open)

    def _candidates(self, model: str) -> list[tuple[PoolMember, ServedModel]]:
        """Return the engines that take requests for a model, at least one."""
        main_name = self.find_model(model).names[0]
        members = [member for member in self._members if member.takes_requests]
        candidates = [
            (m, m.served) for m in members if m.served is not None and m.served.names[0] == main_name
        ]
        if not candidates:
            raise self._nothing_ready()
        return candidates

    def _nothing_ready(self) -> EngineUnavailableError:
        states = [f"{member.session.address} is {_describe(member.status())}" for member in self._members]
        return EngineUnavailableError(f"no engine is ready: {'; '.join(states) or 'the pool is closed'}")


def _describe(status: EngineStatus) -> str:
    if status.state == "loading":
        return f"loading ({status.stage}, {status.fraction:.0%})"
    return f"{status.state} ({status.message})" if status.message else status.state
