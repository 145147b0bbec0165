"""Which messages pass between engine-core and its launcher, the process that places workers on a cluster?

engine-core     launcher
PlaceWorkers    joins the cluster, waits for free resources, starts one actor per rank
                WorkersPlaced, or LaunchFailed
RunWorkers      each actor runs its worker, which connects to the engine
                WorkerEnded for each one that ends, whatever the reason
end of file     ends the actors, releases their resources, exits

They travel as lines of JSON over a socket pair that the launcher inherits (see engine_core.ipc.line_link). So
each process sees the other's death as end of file, and the keys appear on no command line.
"""

from __future__ import annotations

from splitserve.engine_core.ipc.wire import Wire
from splitserve.engine_core.settings.worker_settings import WorkerPlace


class PlaceWorkers(Wire, frozen=True, tag=0):
    """Find a place for every worker.

    Attributes:
        num_ranks: how many workers.
        cluster: HOST:PORT, "auto", "local", or "" for RAY_ADDRESS if that is set, else local.
        directory: for the files of a Ray instance that the launcher starts itself.
        device: "auto", "cpu" or "cuda".
        num_cpus: CPUs to reserve for a worker that computes on them.
        timeout_s: longest wait, first for the cluster and then for free resources.
    """

    num_ranks: int
    cluster: str
    directory: str
    device: str
    num_cpus: int
    timeout_s: float


class RunWorkers(Wire, frozen=True, tag=1):
    """Run the workers.

    Attributes:
        places: by rank, where the worker finds its engine and the other ranks.
        server_key: Z85 text, the engine's public key.
        public_key, secret_key: Z85 text, the pair that the workers authenticate with.
    """

    places: list[WorkerPlace]
    server_key: str
    public_key: str
    secret_key: str


class Seat(Wire, frozen=True):
    """Where a rank is.

    Attributes:
        node: human-readable name of the node.
        num_local_ranks: ranks of this engine on the same node.
    """

    node: str
    num_local_ranks: int


class WorkersPlaced(Wire, frozen=True, tag=0):
    """There is an actor for every rank.

    Attributes:
        host: address of the engine's machine within the cluster.
        device: what all workers compute on, "cpu" or "cuda".
        rendezvous: where the ranks can meet, tcp://HOST:PORT.
        seats: by rank.
    """

    host: str
    device: str
    rendezvous: str
    seats: list[Seat]


class WorkerEnded(Wire, frozen=True, tag=1):
    """A worker has ended; `how` is part of a sentence."""

    rank: int
    how: str


class LaunchFailed(Wire, frozen=True, tag=2):
    """The workers cannot be placed or run; `code` is one of engine_core.errors."""

    code: str
    message: str


ToLauncherMessage = PlaceWorkers | RunWorkers
FromLauncherMessage = WorkersPlaced | WorkerEnded | LaunchFailed
