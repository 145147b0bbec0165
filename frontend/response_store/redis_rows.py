"""Rows in Redis: one hash per row, and sets by which they are found, all changed by scripts of the server.

key                     holds
{splitserve}:row:T/I    hash: created_s, expires_s, owner, data, event_bytes; it expires by itself
{splitserve}:events:T/I sorted set: events, each as FIRST:DATA, by the number of the last
{splitserve}:age        sorted set: rows by created_s
{splitserve}:expiry     sorted set: rows by expires_s
{splitserve}:sizes      hash: row -> bytes of data
{splitserve}:bytes      their sum
{splitserve}:of:OWNER   set: rows of an owner
{splitserve}:lease:O    exists while the lease of an owner lasts
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import RedisError

from splitserve.frontend.response_store.errors import StoreUnavailableError
from splitserve.frontend.response_store.rows import Events, Row, RowKey

WAIT_S = 5
_MAX_CONNECTIONS = 16
# The list of an owner's rows outlives its lease, for the sake of rows whose owner was only slow.
_OWNED_S = 86400

# Common to the scripts: how a row leaves the sets.
_FORGET = """
local base = '{splitserve}:'
local function forget(member, keeps_events)
  local key = base .. 'row:' .. member
  local owner = redis.call('HGET', key, 'owner')
  if owner and owner ~= '' then redis.call('SREM', base .. 'of:' .. owner, member) end
  local size = redis.call('HGET', base .. 'sizes', member)
  if size then redis.call('DECRBY', base .. 'bytes', size) end
  redis.call('HDEL', base .. 'sizes', member)
  redis.call('ZREM', base .. 'age', member)
  redis.call('ZREM', base .. 'expiry', member)
  if not keeps_events then redis.call('DEL', base .. 'events:' .. member) end
  return redis.call('DEL', key)
end
"""
# member, created_s, expires_s, owner, data; then the mode: put, add, or replace and the owner it needs
_WRITE = (
    _FORGET
    + """
local member, key = ARGV[1], base .. 'row:' .. ARGV[1]
local old = redis.call('HGET', key, 'owner')
if ARGV[6] == 'add' and old and old ~= '' then return 0 end
if ARGV[6] == 'replace' and old ~= ARGV[7] then return 0 end
local event_bytes = 0
if ARGV[6] == 'replace' then event_bytes = tonumber(redis.call('HGET', key, 'event_bytes') or '0') end
forget(member, ARGV[6] == 'replace')
redis.call('HSET', key, 'created_s', ARGV[2], 'expires_s', ARGV[3], 'owner', ARGV[4], 'data', ARGV[5],
  'event_bytes', event_bytes)
redis.call('EXPIREAT', key, ARGV[3])
redis.call('ZADD', base .. 'age', ARGV[2], member)
redis.call('ZADD', base .. 'expiry', ARGV[3], member)
redis.call('HSET', base .. 'sizes', member, #ARGV[5] + event_bytes)
redis.call('INCRBY', base .. 'bytes', #ARGV[5] + event_bytes)
if ARGV[4] ~= '' then
  redis.call('SADD', base .. 'of:' .. ARGV[4], member)
  redis.call('EXPIRE', base .. 'of:' .. ARGV[4], ARGV[8])
end
return 1
"""
)
# member, owner, last, events
_APPEND = """
local base = '{splitserve}:'
local member, key, size = ARGV[1], base .. 'row:' .. ARGV[1], #ARGV[4]
if redis.call('HGET', key, 'owner') ~= ARGV[2] then return 0 end
redis.call('ZADD', base .. 'events:' .. member, ARGV[3], ARGV[4])
redis.call('EXPIREAT', base .. 'events:' .. member, redis.call('HGET', key, 'expires_s'))
redis.call('HINCRBY', key, 'event_bytes', size)
redis.call('HINCRBY', base .. 'sizes', member, size)
redis.call('INCRBY', base .. 'bytes', size)
return 1
"""
_DELETE = _FORGET + "return forget(ARGV[1])"
# now_s, max_bytes
_TIDY = (
    _FORGET
    + """
local evicted, start = 0, 0
for _, member in ipairs(redis.call('ZRANGEBYSCORE', base .. 'expiry', '-inf', ARGV[1], 'LIMIT', 0, 1000)) do
  forget(member)
end
while tonumber(redis.call('GET', base .. 'bytes') or '0') > tonumber(ARGV[2]) and evicted < 1000 do
  local member = redis.call('ZRANGE', base .. 'age', start, start)[1]
  if not member then break end
  local owner = redis.call('HGET', base .. 'row:' .. member, 'owner')
  if owner and owner ~= '' and redis.call('EXISTS', base .. 'lease:' .. owner) == 1 then
    start = start + 1
  else
    evicted = evicted + forget(member)
  end
end
return evicted
"""
)


class RedisDatabase:
    """One Redis server; belongs to an event loop."""

    def __init__(self, url: str) -> None:
        """Prepare; the first call connects.

        Raises:
            ValueError: it is no URL of Redis.
        """
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_MAX_CONNECTIONS,
            timeout=WAIT_S,
            socket_timeout=WAIT_S,
            socket_connect_timeout=WAIT_S,
        )
        self._redis: Any = Redis(connection_pool=pool)
        self._write = self._redis.register_script(_WRITE)
        self._append = self._redis.register_script(_APPEND)
        self._delete = self._redis.register_script(_DELETE)
        self._tidy = self._redis.register_script(_TIDY)

    async def put(self, row: Row) -> None:
        """As Database."""
        await self._store(row, "put")

    async def add(self, row: Row) -> bool:
        """As Database."""
        return await self._store(row, "add")

    async def replace(self, row: Row, owner: str) -> bool:
        """As Database."""
        return await self._store(row, "replace", owner)

    async def _store(self, row: Row, mode: str, needed: str = "") -> bool:
        values = (row.created_s, row.expires_s, row.owner, row.data)
        with _errors():
            return bool(await self._write(args=[_member(row.key), *values, mode, needed, _OWNED_S]))

    async def append(self, key: RowKey, owner: str, events: Events) -> bool:
        """As Database."""
        value = b"%d:%b" % (events.first, events.data)
        with _errors():
            return bool(await self._append(args=[_member(key), owner, events.last, value]))

    async def events(self, key: RowKey, after: int) -> list[Events]:
        """As Database."""
        name = f"{{splitserve}}:events:{_member(key)}"
        with _errors():
            found = await self._redis.zrange(
                name, f"({after}", "+inf", byscore=True, withscores=True, score_cast_func=float
            )
        parts = [(value.partition(b":"), int(last)) for value, last in found]
        return [Events(int(first), last, data) for (first, _, data), last in parts]

    async def get(self, key: RowKey, now_s: float) -> Row | None:
        """As Database."""
        with _errors():
            fields = ("created_s", "expires_s", "owner", "data")
            found = await self._redis.hmget(_row_key(key), fields)
        if found[3] is None or int(found[1]) <= now_s:
            return None
        return Row(key, float(found[0]), int(found[1]), found[2].decode(), found[3])

    async def delete(self, key: RowKey, now_s: float) -> bool:
        """As Database."""
        with _errors():
            return bool(await self._delete(args=[_member(key)]))

    async def renew(self, owner: str, now_s: float, lease_s: float) -> set[RowKey]:
        """As Database."""
        with _errors():
            async with self._redis.pipeline() as pipeline:
                pipeline.set(f"{{splitserve}}:lease:{owner}", "", px=round(lease_s * 1000))
                pipeline.expire(f"{{splitserve}}:of:{owner}", _OWNED_S)
                pipeline.smembers(f"{{splitserve}}:of:{owner}")
                found = (await pipeline.execute())[2]
        return {_key_of(member.decode()) for member in found}

    async def is_alive(self, owner: str, now_s: float) -> bool:
        """As Database."""
        with _errors():
            return bool(await self._redis.exists(f"{{splitserve}}:lease:{owner}"))

    async def tidy(self, now_s: float, max_bytes: int) -> int:
        """As Database."""
        with _errors():
            return int(await self._tidy(args=[now_s, max_bytes]))

    async def close(self) -> None:
        """As Database."""
        with contextlib.suppress(RedisError, OSError):
            await self._redis.aclose(close_connection_pool=True)


def _member(key: RowKey) -> str:
    # Neither tenants nor ids have a slash.
    return f"{key.tenant}/{key.id}"


def _key_of(member: str) -> RowKey:
    tenant, _, row_id = member.partition("/")
    return RowKey(tenant, row_id)


def _row_key(key: RowKey) -> str:
    return f"{{splitserve}}:row:{_member(key)}"


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise StoreUnavailableError(f"{type(error).__name__}: {error}") from None
