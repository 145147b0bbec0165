"""Which adapters does the engine know, which are in memory, and which requests wait for theirs?

    an adapter is   by                                               its requests
    known           --lora; a call once the workers have read it;    -
                    a predecessor at the engine's address
    wanted          a request; a call; again after lost workers      wait in the queue, others overtake them
    loading         a slot that no row uses                          wait
    loaded          the workers' answer                              are admitted
    leaving         another is wanted, and rows use every slot       those that run go on, others wait
    refused         the workers' answer                              end with "adapter_failed" (500)
    unloaded        a call                                           go on; new ones are refused with 404

Of the adapters that no row uses, the one used longest ago gives way. A wanted one waits its turn.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from splitserve.engine_core.adapter import Adapter
from splitserve.engine_core.errors import InvalidRequestError, WorkerError
from splitserve.engine_core.ipc.messages import FinishReason
from splitserve.engine_core.ipc.wire import AdapterInfo
from splitserve.engine_core.ipc.worker_messages import NO_ADAPTER, AdapterLoaded, LoadAdapter
from splitserve.engine_core.request import EndedRequest, Request, RequestState
from splitserve.engine_core.settings.adapter_settings import MAX_NAMES, is_adapter_name

# Called with "" once an adapter is loaded, else with why it cannot be.
OnLoaded = Callable[[str], None]


class AdapterPlan(NamedTuple):
    """The adapters of an engine from its beginning.

    Attributes:
        num_slots: adapters in memory at once; 0 for an engine without any.
        paths: directories by name.
    """

    num_slots: int = 0
    paths: Mapping[str, str] = {}


class Adapters:
    """The adapters of an engine; used by its thread.

    Attributes:
        num_slots: adapters in memory at once; 0 if none are served.
        wanted: adapters that somebody waits for and that are not being loaded yet, in order; row admission
            adds to it.
        has_changed: the list of names has changed since somebody cleared this.
    """

    def __init__(self, plan: AdapterPlan, new_key: Callable[[], str]) -> None:
        """Know the adapters of a plan, of which none is loaded.

        Args:
            plan: of this engine.
            new_key: returns what was never a key before.
        """
        self._new_key = new_key
        self.num_slots = plan.num_slots
        self._given = plan.paths
        self._named = {name: Adapter(name, path, new_key()) for name, path in plan.paths.items()}
        self._free = list(range(plan.num_slots))
        self._placed: dict[int, Adapter] = {}
        self._by_number: dict[int, Adapter] = {}
        self._next_number = 0
        self._calls: dict[Adapter, OnLoaded] = {}
        # Those that fit are there before the first request.
        self.wanted: dict[Adapter, None] = dict.fromkeys(list(self._named.values())[: plan.num_slots])
        self.has_changed = False

    @property
    def are_served(self) -> bool:
        """Whether there may be any."""
        return self.num_slots > 0

    def listed(self) -> list[AdapterInfo]:
        """Return the adapters that requests may name, oldest first."""
        return [AdapterInfo(each.name, each.path, each.digest) for each in self._named.values()]

    def added(self) -> list[AdapterInfo]:
        """Return those that were not among the first ones, which a successor knows anyway."""
        return [each for each in self.listed() if self._given.get(each.name) != each.path]

    def restore(self, info: AdapterInfo) -> None:
        """Know one that a predecessor has added, before the first request; its files are checked when loaded.

        One that the engine cannot have is left out.
        """
        if not self.num_slots or not is_adapter_name(info.name) or len(self._named) >= MAX_NAMES:
            return
        replaced = self._named.get(info.name)
        if replaced is not None:
            self.wanted.pop(replaced, None)
        self._named[info.name] = adapter = Adapter(info.name, info.path, self._new_key(), info.digest)
        if len(self.wanted) < self.num_slots:
            self.wanted[adapter] = None
        self.has_changed = True

    def find(self, name: str, digest: str) -> Adapter | None:
        """Return the adapter that a request names; None for "".

        Args:
            name: of the adapter.
            digest: of the adapter with which the request began; "" if that is not known.

        Raises:
            InvalidRequestError: status 404, there is none; 409, it is another one by now.
        """
        if not name:
            return None
        adapter = self._named.get(name)
        if adapter is None:
            error = InvalidRequestError(f"no adapter {name!r} is loaded here", "model", "model_not_found")
            error.status = 404
            raise error
        if digest and adapter.digest and digest != adapter.digest:
            error = InvalidRequestError(
                f"the adapter {name!r} is not the one here with which the request began",
                "model",
                "adapter_changed",
            )
            error.status = 409
            raise error
        return adapter

    def want(self, requests: Iterable[Request]) -> None:
        """Have the adapters of new requests loaded."""
        for request in requests:
            adapter = request.adapter
            if adapter is not None and not adapter.is_loaded and adapter.slot == NO_ADAPTER:
                self.wanted[adapter] = None

    def load(self, name: str, path: str, on_loaded: OnLoaded) -> None:
        """Make a new adapter known once the workers have read it.

        Args:
            name: not in use.
            path: its directory.
            on_loaded: called when that is done, or cannot be done; not from within.

        Raises:
            InvalidRequestError: the name is wrong or in use, or there are too many.
        """
        if not self.num_slots:
            raise InvalidRequestError("this engine serves no adapters (--lora, --lora-dir)", "lora_name")
        if not is_adapter_name(name):
            raise InvalidRequestError(
                "lora_name must have 1 to 200 characters, without spaces and '=', and not begin with '/'",
                "lora_name",
            )
        if name in self._named or any(each.name == name for each in self._calls):
            raise InvalidRequestError(f"the adapter {name!r} is loaded already: unload it first", "lora_name")
        if len(self._named) + len(self._calls) >= MAX_NAMES:
            raise InvalidRequestError(f"there are {MAX_NAMES} adapters, which is the maximum", "lora_name")
        adapter = Adapter(name, path, self._new_key())
        self._calls[adapter] = on_loaded
        self.wanted[adapter] = None

    def unload(self, name: str) -> None:
        """Forget an adapter; requests that name it go on.

        Raises:
            InvalidRequestError: status 404, there is none of this name.
        """
        if self.find(name, "") is None:
            raise InvalidRequestError("lora_name must not be empty", "lora_name")
        del self._named[name]
        self.has_changed = True

    def take_unsent(self, running: Callable[[], Iterable[Request]]) -> list[LoadAdapter]:
        """Return what the workers are to be asked.

        Args:
            running: returns the requests that have rows.
        """
        messages: list[LoadAdapter] = []
        while self.wanted:
            adapter = next(iter(self.wanted))
            # Those that were wanted before it have been served.
            adapter.is_leaving = False
            if adapter.slot == NO_ADAPTER:
                slot = self._slot(running)
                if slot is None:
                    break
                messages.append(self._send(adapter, slot))
            del self.wanted[adapter]
        return messages

    def answered(self, answer: AdapterLoaded, requests: Iterable[Request]) -> list[EndedRequest]:
        """Take the workers' answer.

        Args:
            answer: to what take_unsent() returned.
            requests: all in flight.

        Returns:
            Requests that end because their adapter cannot be loaded.

        Raises:
            WorkerError: nothing was asked under this number.
        """
        adapter = self._by_number.pop(answer.number, None)
        if adapter is None:
            raise WorkerError(f"the worker loaded adapter {answer.number}, which was not asked for")
        problem = answer.error
        if not problem and adapter.digest and adapter.digest != answer.digest:
            problem = f"the files in {adapter.path} have changed since it was first loaded"
        on_loaded = self._calls.pop(adapter, None)
        if problem:
            self._vacate(adapter)
        else:
            adapter.is_loaded = True
            self.has_changed |= adapter.digest != answer.digest
            adapter.digest = answer.digest
        adapter.problem = problem
        if on_loaded is not None:
            if not problem:
                self._named[adapter.name] = adapter
            on_loaded(problem)
        return self._ends(adapter, requests) if problem else []

    def start_over(self, requests: Iterable[Request]) -> None:
        """The workers are lost: the next ones have no adapters.

        Args:
            requests: all in flight; they wait.
        """
        lost = [*self._placed.values()]
        for adapter in lost:
            self._vacate(adapter)
        self._by_number.clear()
        waiting = [request.adapter for request in requests if request.adapter is not None]
        calls = [adapter for adapter in lost if adapter in self._calls]
        self.wanted.update(dict.fromkeys([*calls, *waiting]))

    def _send(self, adapter: Adapter, slot: int) -> LoadAdapter:
        self._next_number += 1
        self._by_number[self._next_number] = adapter
        self._placed[slot] = adapter
        adapter.slot = slot
        return LoadAdapter(self._next_number, slot, adapter.path)

    def _slot(self, running: Callable[[], Iterable[Request]]) -> int | None:
        """Return a slot that no row uses, the lowest if one is free; None if there is none now."""
        if not self._free:
            used = {request.adapter for request in running()}
            loaded = [each for each in self._placed.values() if each.is_loaded]
            unused = [each for each in loaded if each not in used]
            if not unused:
                self._let_leave(loaded)
                return None
            self._vacate(min(unused, key=self._goes_first))
        return heapq.heappop(self._free)

    def _goes_first(self, adapter: Adapter) -> tuple[bool, bool, int]:
        is_named = self._named.get(adapter.name) is adapter
        return is_named, not adapter.is_leaving, adapter.last_used

    def _let_leave(self, loaded: list[Adapter]) -> None:
        """Begin no more rows of the adapter used longest ago, if none is leaving yet."""
        if loaded and not any(each.is_leaving for each in loaded):
            min(loaded, key=self._goes_first).is_leaving = True

    def _vacate(self, adapter: Adapter) -> None:
        del self._placed[adapter.slot]
        heapq.heappush(self._free, adapter.slot)
        adapter.slot = NO_ADAPTER
        adapter.is_loaded = adapter.is_leaving = False

    def _ends(self, adapter: Adapter, requests: Iterable[Request]) -> list[EndedRequest]:
        text = f"the adapter {adapter.name!r} cannot be loaded: {adapter.problem}"
        return [
            EndedRequest(request, FinishReason.ERROR, None, "adapter_failed", text, 500)
            for request in requests
            if request.adapter is adapter and request.state is not RequestState.ENDED
        ]
