"""How does an engine take over the workers that its predecessor left? All of them, or none.

    predecessor's record     they say that they wait     then
    none, or another         -                           new workers
    fingerprint
    a worker has ended       -                           the others are killed, new workers
    all run                  all, within ATTACH_S, with  each is adopted, and says hello
                             equal counts of steps
                             any other way               all are killed, new workers

Ranks whose counts differ have not seen the same steps: the predecessor died while it was sending one.
"""

from __future__ import annotations

import contextlib
import math
import os
import time

import zmq

from splitserve.engine_core.errors import ProtocolError
from splitserve.engine_core.executor.adopted_worker import AdoptedWorker
from splitserve.engine_core.ipc.codec import encode, from_worker_decoder
from splitserve.engine_core.ipc.transport import BoundRouter, Received, SendResult
from splitserve.engine_core.ipc.worker_messages import Adopt, WorkerWaiting
from splitserve.engine_core.kept.record import GroupRecord
from splitserve.engine_core.process.kill_points import reach

# A worker in the middle of a step ends it first. To start afresh is faster than to wait for a very long one.
ATTACH_S = 2.0


def attach(router: BoundRouter, record: GroupRecord) -> list[AdoptedWorker]:
    """Take over the workers of a record, which connect to the router by themselves.

    Returns:
        All of them, by rank, each of which says hello next; none if they cannot be taken over as they are.
    """
    workers = [worker for name in record.workers if (worker := AdoptedWorker.find(name)) is not None]
    if len(workers) == len(record.workers):
        waiting = _hear_all(router, workers)
        reach("engine.attaching")
        if _agree(workers, waiting) and _adopt(router, len(workers)):
            return workers
    for worker in workers:
        worker.close()
    return []


def _hear_all(router: BoundRouter, workers: list[AdoptedWorker]) -> dict[int, WorkerWaiting]:
    """Return what the ranks say, as soon as all have, one has ended, or the time is over."""
    heard: dict[int, WorkerWaiting] = {}
    end_s = time.monotonic() + ATTACH_S
    poller = zmq.Poller()
    poller.register(router.socket, zmq.POLLIN)
    for worker in workers:
        poller.register(worker.descriptors[0], zmq.POLLIN)
    while len(heard) < len(workers) and (left_s := end_s - time.monotonic()) > 0:
        poller.poll(math.ceil(left_s * 1000))
        for message in router.receive():
            words = _words(message)
            if words is None:
                # The reply to the predecessor's last step, sent before the worker saw that it is gone.
                continue
            heard[words.rank] = words
        if any(worker.how_it_ended() is not None for worker in workers):
            return {}
    return heard


def _words(message: Received) -> WorkerWaiting | None:
    """Return what a waiting worker says; None if that is something else."""
    with contextlib.suppress(ProtocolError):
        if isinstance(message.frame, ProtocolError):
            return None
        words = from_worker_decoder.decode(message.frame)
        if isinstance(words, WorkerWaiting) and message.identity == str(words.rank).encode():
            return words
    return None


def _agree(workers: list[AdoptedWorker], waiting: dict[int, WorkerWaiting]) -> bool:
    """Whether every rank is there, is the process of the record, and has computed the same steps."""
    pids = {rank: words.pid for rank, words in waiting.items()}
    return (
        pids == {rank: worker.name.pid for rank, worker in enumerate(workers)}
        and len({words.num_steps for words in waiting.values()}) == 1
    )


def _adopt(router: BoundRouter, num_ranks: int) -> bool:
    frame = encode(Adopt(os.getpid()))
    return all(router.send(str(rank).encode(), frame) is SendResult.SENT for rank in range(num_ranks))
