"""Who holds the places in a full queue, and whose request makes room for a new one?

Places, for requests and for tokens alike, are shared among tenants (by weight under the fair policy), and a
tenant's places among the frontends it comes through. A new request that finds no room takes it from whoever
holds more than its own tenant or frontend would with it:

    1. the tenant that holds most for its weight: its frontend that holds most gives up its last request;
    2. else, within the new request's own tenant, the frontend that holds most;
    3. else a less urgent request of its own tenant and frontend.

So whoever asks for less than a fair share always finds room. The last request is the one that would be served
last. A request that has begun to run keeps its places and is never displaced. All sequences of a request
leave together.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.request import FrontendId, Request, Siblings
from splitserve.engine_core.scheduler.waiting.ranking import Ranking
from splitserve.engine_core.scheduler.waiting.tenants import VIRTUAL_UNIT


class QueueBound(enum.IntEnum):
    """Which limit of the queue is reached."""

    REQUESTS = 0
    TOKENS = 1

    @property
    def flag(self) -> str:
        """Name of the setting for this limit."""
        return "max_num_waiting" if self is QueueBound.REQUESTS else "max_waiting_tokens"


# Changes kept until the next ranking, in addition to two for each request that may have to leave.
MAX_UNRANKED = 256


def _sizes() -> list[int]:
    return [0] * len(QueueBound)


@dataclass(slots=True)
class _FrontendPlaces:
    """What one tenant's requests hold through one frontend; those that may have to leave, the last first."""

    sizes: list[int] = field(default_factory=_sizes)
    leaving: Ranking[int, tuple[int, int]] = field(default_factory=Ranking)


class _TenantPlaces:
    """What one tenant's requests hold, and which frontend has most of those that may have to leave."""

    __slots__ = ("frontends", "most", "price", "sizes", "weight")

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.price = VIRTUAL_UNIT // weight
        self.sizes = _sizes()
        self.frontends: dict[FrontendId, _FrontendPlaces] = {}
        self.most: tuple[Ranking[FrontendId, int], ...] = tuple(Ranking() for _ in QueueBound)


class Places:
    """The waiting requests that never ran, by tenant and frontend; used by the engine's thread.

    A change costs O(log n), and while the queue has room just a few additions: who holds most is worked out
    only when somebody has to leave. Tenants and frontends without a waiting request take no memory here.

    Args:
        weights: 1..1000 by tenant; others have 1.

    Attributes:
        sizes: what all of them hold, by QueueBound.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = dict(weights)
        self.sizes = _sizes()
        self._sum_weights = 0
        self._tenants: dict[str, _TenantPlaces] = {}
        self._most: tuple[Ranking[str, int], ...] = tuple(Ranking() for _ in QueueBound)
        # Requests that may have to leave, by arrival.
        self._leaving: dict[int, Siblings] = {}
        # Tenants and frontends whose ranking is out of date.
        self._unranked: set[tuple[str, FrontendId]] = set()

    def add(self, siblings: Siblings) -> None:
        """Give a request's waiting sequences their places."""
        holder = self._count(siblings, len(siblings.waiting), siblings.num_tokens)
        if not siblings.has_begun:
            self._leaving[siblings.arrival] = siblings
            holder.leaving.set(siblings.arrival, (-siblings.priority, -siblings.arrival))

    def remove(self, siblings: Siblings) -> None:
        """Free the places of all its sequences."""
        holder = self._count(siblings, -len(siblings.waiting), -siblings.num_tokens)
        self._keep(siblings, holder)

    def left(self, request: Request) -> None:
        """Free the place of one sequence that has been admitted, or has ended."""
        siblings, num_tokens = request.siblings, request.num_stored_tokens
        del siblings.waiting[request.arrival]
        siblings.num_tokens -= num_tokens
        holder = self._count(siblings, -1, -num_tokens)
        if siblings.has_begun or not siblings.waiting:
            self._keep(siblings, holder)

    def choose(self, incoming: Siblings, bound: QueueBound) -> Siblings | None:
        """Return the request that has to leave for a new one that finds no room; None if none has to."""
        self._rank()
        own = self._tenants.get(incoming.tenant) or self._new_tenant(incoming.tenant)
        size = incoming.sizes[bound]
        most = self._most[bound].first()
        if most is not None and -most[0] > (own.sizes[bound] + size) * own.price:
            return self._last_of(self._tenants[most[1]], bound)
        frontend = own.frontends.get(incoming.frontend) or _FrontendPlaces()
        most_of_own = own.most[bound].first()
        if most_of_own is not None and -most_of_own[0] > frontend.sizes[bound] + size:
            return self._last_of(own, bound)
        last = frontend.leaving.first()
        if last is not None and -last[0][0] > incoming.priority:
            return self._leaving[last[1]]
        return None

    def is_within_share(self, incoming: Siblings, bound: QueueBound, limit: int) -> bool:
        """Whether the new request's tenant would, including it, hold at most its share of a limit."""
        own = self._tenants.get(incoming.tenant) or self._new_tenant(incoming.tenant)
        sum_weights = self._sum_weights + (0 if incoming.tenant in self._tenants else own.weight)
        return (own.sizes[bound] + incoming.sizes[bound]) * sum_weights <= limit * own.weight

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the sums agree and only waiting requests may have to leave."""
        holders = [holder for tenant in self._tenants.values() for holder in tenant.frontends.values()]
        for parts in (self._tenants.values(), holders):
            if [sum(part.sizes[bound] for part in parts) for bound in QueueBound] != self.sizes:
                raise IntegrityError("the places of tenants and frontends are not those of the queue")
        for siblings in self._leaving.values():
            if siblings.has_begun or not siblings.waiting:
                raise IntegrityError(f"request {siblings.arrival} may be asked to leave, and does not wait")
        if sum(len(holder.leaving) for holder in holders) != len(self._leaving):
            raise IntegrityError("the requests that may be asked to leave are not those of the frontends")
        if self._sum_weights != sum(tenant.weight for tenant in self._tenants.values()):
            raise IntegrityError("the weights of those that wait do not come to their sum")

    def _last_of(self, tenant: _TenantPlaces, bound: QueueBound) -> Siblings:
        most = tenant.most[bound].first()
        assert most is not None, "a ranked tenant has somebody who may leave"
        last = tenant.frontends[most[1]].leaving.first()
        assert last is not None, "a ranked frontend has somebody who may leave"
        return self._leaving[last[1]]

    def _new_tenant(self, name: str) -> _TenantPlaces:
        return _TenantPlaces(self._weights.get(name, 1))

    def _count(self, siblings: Siblings, num_requests: int, num_tokens: int) -> _FrontendPlaces:
        """Add to the counts, and forget whoever no longer holds anything."""
        name, frontend = siblings.tenant, siblings.frontend
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = self._new_tenant(name)
            self._sum_weights += tenant.weight
        holder = tenant.frontends.get(frontend)
        if holder is None:
            holder = tenant.frontends[frontend] = _FrontendPlaces()
        for sizes in (self.sizes, tenant.sizes, holder.sizes):
            # Plain indices, as each enum member would cost a call.
            sizes[0] += num_requests
            sizes[1] += num_tokens
        if not holder.sizes[0]:
            del tenant.frontends[frontend]
        if not tenant.sizes[0]:
            del self._tenants[name]
            self._sum_weights -= tenant.weight
        self._unranked.add((name, frontend))
        if len(self._unranked) > 2 * len(self._leaving) + MAX_UNRANKED:
            self._rank()
        return holder

    def _keep(self, siblings: Siblings, holder: _FrontendPlaces) -> None:
        """Exempt a request from having to leave: it has begun, or holds nothing."""
        self._leaving.pop(siblings.arrival, None)
        holder.leaving.set(siblings.arrival, None)

    def _rank(self) -> None:
        """Update the ranking of those whose places have changed."""
        for name, frontend in self._unranked:
            tenant = self._tenants.get(name)
            holder = None if tenant is None else tenant.frontends.get(frontend)
            for bound in QueueBound:
                if tenant is not None:
                    sizes = holder.sizes if holder is not None and len(holder.leaving) else None
                    tenant.most[bound].set(frontend, None if sizes is None else -sizes[bound])
                is_ranked = tenant is not None and len(tenant.most[bound])
                use = tenant.sizes[bound] * tenant.price if tenant is not None and is_ranked else None
                self._most[bound].set(name, None if use is None else -use)
        self._unranked.clear()
