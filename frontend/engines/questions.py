"""What does an operator ask of every engine that is ready, and what if one does not reply?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from splitserve.engine_core.errors import EngineUnavailableError, InvalidRequestError
from splitserve.engine_core.ipc.messages import Call, CallKind, CallResult
from splitserve.engine_core.ipc.wire import EngineView, LogLevelName
from splitserve.frontend.engines.replica import EngineReplica
from splitserve.frontend.engines.status import EngineStatus, Explanation

# In vLLM's words: how deep an engine may sleep, giving up its KV cache or weights as well; what wakes up.
SLEEP_LEVELS = (1, 2)
DEFAULT_SLEEP_LEVEL = 1
AWAKE = 0
WAKE_TAGS = ("weights", "kv_cache")


async def ping(replicas: Iterable[EngineReplica], timeout_s: float) -> list[EngineStatus]:
    """Return the status of those whose busy loop replies, at least one; see EnginePool.ping."""
    asked = list(replicas)
    answered = await asyncio.gather(*(each.answers(timeout_s) for each in asked))
    alive = [each.status() for each, ok in zip(asked, answered, strict=True) if ok]
    if not alive:
        raise EngineUnavailableError(f"no engine answered a ping within {timeout_s:g} s")
    return alive


async def explain(
    replicas: Iterable[EngineReplica], request_ids: Sequence[str], tenant: str, timeout_s: float
) -> list[Explanation]:
    """Return where requests stand, of each engine; see EnginePool.explain."""
    return await asyncio.gather(*(_explain(each, request_ids, tenant, timeout_s) for each in replicas))


async def view(replicas: Iterable[EngineReplica], tenant: str, timeout_s: float) -> dict[str, EngineView]:
    """Return what those that reply show, by address; see EnginePool.view."""
    asked = list(replicas)
    results = await asyncio.gather(
        *(each.ask(CallKind.VIEW_ENGINE, timeout_s, tenant=tenant) for each in asked)
    )
    views = {each.address: result.view for each, result in zip(asked, results, strict=True) if result}
    return {address: view for address, view in views.items() if view is not None}


async def reset_prefix_cache(replicas: Iterable[EngineReplica], timeout_s: float) -> int:
    """Return how many blocks held a prefix that is forgotten now; see EnginePool.reset_prefix_cache."""
    call = Call(0, CallKind.RESET_PREFIX_CACHE)
    results = await asyncio.gather(*(each.client.call(call, timeout_s) for each in replicas))
    return sum(result.num_blocks for result in results)


async def set_log_level(
    replicas: Iterable[EngineReplica], level: LogLevelName, timeout_s: float
) -> dict[str, bool]:
    """Return which engines log from another level on now, by address; see EnginePool.set_log_level."""
    call = Call(0, CallKind.SET_LOG_LEVEL, log_level=level)
    asked = list(replicas)
    results = await asyncio.gather(
        *(each.client.call(call, timeout_s) for each in asked), return_exceptions=True
    )
    return {
        each.address: isinstance(result, CallResult) and result.ok
        for each, result in zip(asked, results, strict=True)
    }


async def rest(replicas: Iterable[EngineReplica], level: int, timeout_s: float) -> None:
    """Have engines sleep, which returns once the memory that they give up is free, or wake up.

    Open requests wait, and go on with the same tokens; new ones are refused until the engines have taken
    their memory again, some time after waking up returns.

    Args:
        replicas: those that are asked.
        level: 1 gives up the KV cache, 2 the weights as well; AWAKE takes them again.
        timeout_s: for the answers.

    Raises:
        EngineUnavailableError: an engine did not do so in time.
    """
    kind = CallKind.WAKE_UP if level == AWAKE else CallKind.SLEEP
    call = Call(0, kind, keeps_weights=level == 1)
    await asyncio.gather(*(each.client.call(call, timeout_s) for each in replicas))


async def _explain(
    replica: EngineReplica, request_ids: Sequence[str], tenant: str, timeout_s: float
) -> Explanation:
    result = await replica.ask(CallKind.EXPLAIN_REQUESTS, timeout_s, request_ids, tenant)
    if result is None:
        return Explanation(replica.address, False)
    return Explanation(replica.address, True, result.requests)


def check_sleep_level(level: object) -> None:
    """Refuse another level than 1 or 2; raises InvalidRequestError."""
    if type(level) is not int or level not in SLEEP_LEVELS:
        raise InvalidRequestError(
            "level may be 1, which gives up the KV cache, or 2, which gives up the weights as well, "
            f"got {str(level)[:64]!r}",
            "level",
            "unsupported_parameter",
        )


def check_wake_tags(tags: Sequence[str] | None) -> None:
    """Refuse to wake up a part, which is not possible; None is all. Raises InvalidRequestError."""
    if tags is not None and set(tags) != set(WAKE_TAGS):
        raise InvalidRequestError(
            f"tags may only be left out, or name {' and '.join(WAKE_TAGS)}: an engine wakes up as a whole",
            "tags",
            "unsupported_parameter",
        )
