"""The launcher, started by an engine-core: `python -m splitserve.worker.ray.launcher FD`.

FD is its end of a socket pair. It is the driver of a Ray job. Ray ends the actors of a job and releases
their resources when its driver exits for any reason; and this process exits with its engine, even if that is
killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from concurrent.futures import Future
from functools import partial
from types import FrameType
from typing import TypeVar

from splitserve.engine_core.errors import EXIT_OK, SplitServeError, WorkerError
from splitserve.engine_core.ipc.curve import ClientKeys
from splitserve.engine_core.ipc.launcher_messages import (
    LaunchFailed,
    PlaceWorkers,
    RunWorkers,
    ToLauncherMessage,
    WorkerEnded,
    WorkersPlaced,
)
from splitserve.engine_core.ipc.line_link import LineLink
from splitserve.worker.ray.actor_group import ActorGroup, describe_end, reserved_room
from splitserve.worker.ray.cluster import joined_cluster

M = TypeVar("M", PlaceWorkers, RunWorkers)
Link = LineLink[ToLauncherMessage]


class _EngineGoneError(Exception):
    """The engine has closed its end of the socket pair."""


class _TerminatedError(BaseException):
    """SIGTERM came, from the kernel when the engine died; no handler of Ray's calls may catch it."""


def main() -> int:
    """Place and watch one engine's workers until it closes its end; returns the exit code."""
    link: Link = LineLink(socket.socket(fileno=int(sys.argv[1])), ToLauncherMessage)
    try:
        _serve(link)
    except (_EngineGoneError, _TerminatedError):
        pass
    except SplitServeError as error:
        link.send(LaunchFailed(error.code, str(error)))
    except Exception as error:
        link.send(LaunchFailed(WorkerError.code, f"Ray failed: {type(error).__name__}: {error}"))
    return EXIT_OK


def _serve(link: Link) -> None:
    order = _expect(link, PlaceWorkers)
    try:
        _place_and_watch(link, order)
    finally:
        # An engine that was killed cannot do it.
        shutil.rmtree(order.directory, ignore_errors=True)


def _place_and_watch(link: Link, order: PlaceWorkers) -> None:
    with joined_cluster(order, partial(_give_up, link)) as cluster:
        # Ray has set one of its own.
        signal.signal(signal.SIGTERM, _terminate)
        device = cluster.choose_device(order.device)
        bundle = {"GPU": 1} if device == "cuda" else {"CPU": order.num_cpus}
        with reserved_room(cluster, order.num_ranks, bundle, order.timeout_s) as room:
            actors = ActorGroup(cluster, room, bundle, order.timeout_s)
            link.send(WorkersPlaced(cluster.host, device, actors.rendezvous, actors.seats(device)))
            command = _expect(link, RunWorkers)
            keys = ClientKeys(
                command.public_key.encode(), command.secret_key.encode(), command.server_key.encode()
            )
            for rank, run in enumerate(actors.run(command.places, keys)):
                run.add_done_callback(partial(_tell_end, link, rank))
            while link.is_open:
                link.receive(wait=True)


def _terminate(number: int, frame: FrameType | None) -> None:
    # The kernel may repeat it, and what has begun to end shall end in order.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _TerminatedError


def _expect(link: Link, kind: type[M]) -> M:
    for message in link.receive(wait=True):
        assert isinstance(message, kind), "the engine sends one after the other"
        return message
    raise _EngineGoneError


def _tell_end(link: Link, rank: int, run: Future[int]) -> None:
    link.send(WorkerEnded(rank, describe_end(run)))


def _give_up(link: Link, error: SplitServeError) -> None:
    """End at once, from another thread: Ray's own calls cannot be interrupted."""
    link.send(LaunchFailed(error.code, str(error)))
    os._exit(EXIT_OK)


if __name__ == "__main__":
    sys.exit(main())
