"""How do the messages of one client request become requests of the engine?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from splitserve.engine_core.adapter import Adapter
from splitserve.engine_core.engine.request_table import RequestTable
from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.request import (
    FrontendId,
    Request,
    RequestLimits,
    Siblings,
    check_request,
    deadline_of,
)


class Intake:
    """Checks new sequences and numbers them in order of arrival; used by the engine's thread.

    Args:
        limits: of one sequence.
        max_num_siblings: most sequences of one request.
        policy: "priority" orders all requests by priority, "fair" those of a tenant, "fcfs" none.
        open_requests: the requests in flight, whose handles are in use.
        namespace: returns the start of the hash chain of a tenant, a cache salt and an adapter's key.
        find_adapter: returns the adapter of a name and a digest, see Adapters.find.
    """

    def __init__(
        self,
        limits: RequestLimits,
        max_num_siblings: int,
        policy: str,
        open_requests: RequestTable,
        namespace: Callable[[str, str, str], bytes],
        find_adapter: Callable[[str, str], Adapter | None],
    ) -> None:
        self._limits = limits
        self._max_num_siblings = max_num_siblings
        self._policy = policy
        self._open = open_requests
        self._namespace = namespace
        self._find_adapter = find_adapter
        self._num_arrivals = 0

    def siblings(self, frontend: FrontendId, messages: Sequence[AddRequest], now_s: float) -> Siblings:
        """Build the sequences of one request from their messages, without changing the engine.

        Args:
            frontend: which one sent them.
            messages: at least one.
            now_s: time of arrival.

        Raises:
            InvalidRequestError, ContextLengthError, ProtocolError: as check_request() and Adapters.find(); or
                the messages contradict each other, or are more than can ever run and wait.
        """
        first = messages[0]
        if len(messages) > self._max_num_siblings:
            raise InvalidRequestError(
                f"a request may have at most {self._max_num_siblings} sequences (--max-num-seqs, "
                f"--max-num-waiting), got {len(messages)}",
                "n",
            )
        siblings = Siblings(
            tenant=first.tenant,
            frontend=frontend,
            priority=0 if self._policy == "fcfs" else first.priority,
            arrival=self._num_arrivals,
            has_begun=first.continues,
        )
        handles = set()
        for message in messages:
            self._open.check_new(frontend, message.handle)
            if message.handle in handles:
                raise InvalidRequestError(f"handle {message.handle} is in use", "handle", "duplicate_handle")
            if (message.tenant, message.priority) != (first.tenant, first.priority):
                raise InvalidRequestError(
                    "all sequences of a request must have the same tenant and priority", "tenant"
                )
            handles.add(message.handle)
            siblings.add(self._make_request(siblings, message, now_s))
        return siblings

    def _make_request(self, siblings: Siblings, message: AddRequest, now_s: float) -> Request:
        checked = check_request(message, self._limits)
        adapter = self._find_adapter(message.adapter, message.adapter_digest)
        key = "" if adapter is None else adapter.key
        arrival = self._num_arrivals
        self._num_arrivals += 1
        return Request(
            frontend=siblings.frontend,
            handle=message.handle,
            request_id=message.request_id,
            sampling=checked.sampling,
            sort_key=(message.priority if self._policy == "priority" else 0, arrival),
            arrival=arrival,
            arrival_s=now_s,
            deadline_s=deadline_of(message.timeout_s, now_s),
            token_ids=checked.token_ids,
            num_prompt_tokens=checked.num_prompt_tokens,
            max_num_tokens=checked.max_num_tokens,
            tenant=message.tenant,
            cache_salt=message.cache_salt,
            namespace=self._namespace(message.tenant, message.cache_salt, key),
            repetition=checked.repetition,
            priority=message.priority,
            streams=message.streams,
            siblings=siblings,
            second_at=message.second_at,
            pools_all=self._limits.pools_all,
            pools_tokens=message.pools_tokens,
            adapter=adapter,
            predicted=checked.predicted,
        )
