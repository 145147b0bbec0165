"""The Ray cluster of an engine: joined or started, and what it says of its nodes."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from splitserve.engine_core.errors import SplitServeError, WorkerError
from splitserve.engine_core.ipc.launcher_messages import PlaceWorkers

LOCAL = "local"
# Ray's smallest store for objects; no tensor passes through it.
_OBJECT_STORE_BYTES = 80 * 2**20
# Read when ray is imported, by it and by what it starts.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_COLOR_PREFIX": "0",
    "RAY_DEDUP_LOGS": "0",
}
# Only where we start Ray ourselves: its sockets are bound to loopback (Ray's name for it tells where that is
# the default) and nothing waits in reserve.
_LOCAL_SETTINGS = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    # Ray would kill workers when the machine runs short; what a worker takes is the operator's decision.
    "RAY_memory_monitor_refresh_ms": "0",
    # By default Ray's workers give way to all else that runs: beside two busy processes on two cores one took
    # ten times as long to start.
    "RAY_worker_niceness": "0",
}


class Cluster:
    """A cluster that this process is a driver of.

    Attributes:
        host: address of this machine's node.
        node_id: of this machine's node.
    """

    def __init__(self) -> None:
        import ray

        self.host: str = ray.util.get_node_ip_address()
        self.node_id: str = ray.get_runtime_context().get_node_id()

    def choose_device(self, requested: str) -> str:
        """Return "cuda" or "cpu": "auto" takes GPUs where Ray knows of any."""
        import ray

        if requested != "auto":
            return requested
        return "cuda" if ray.cluster_resources().get("GPU", 0) >= 1 else "cpu"

    def describe(self, resource: str) -> str:
        """Say what the nodes have of a resource, and how much of it is free."""
        import ray

        nodes = [node for node in ray.nodes() if node["Alive"]]
        parts = [
            f"{node['Resources'].get(resource, 0):g} on "
            f"{node_name(node['NodeManagerAddress'], node['NodeID'])}"
            for node in nodes
        ]
        free = ray.available_resources().get(resource, 0)
        return f"the cluster has {resource} {', '.join(parts)}; {free:g} free in all"


def node_name(address: str, node_id: str) -> str:
    """Return what a node is called in errors: its address, and its id as several may share an address."""
    return f"{address} ({node_id[:8]})"


@contextmanager
def joined_cluster(order: PlaceWorkers, give_up: Callable[[SplitServeError], None]) -> Iterator[Cluster]:
    """Join the cluster, or start one on this machine; leave it, or end it, in the end.

    Args:
        order: names the cluster.
        give_up: called from another thread if joining takes too long.

    Raises:
        WorkerError: there is no cluster.
    """
    address = order.cluster or os.environ.get("RAY_ADDRESS") or LOCAL
    os.environ.update(_SETTINGS)
    if address == LOCAL:
        _prepare_local()
    import ray

    where = "a Ray of its own" if address == LOCAL else f"the Ray cluster at {address}"
    late = WorkerError(f"joining {where} took longer than {order.timeout_s:g} s")
    timer = threading.Timer(order.timeout_s, give_up, [late])
    timer.daemon = True
    timer.start()
    try:
        _init(address, order)
    except Exception as error:
        raise WorkerError(f"cannot join {where}: {error}") from error
    finally:
        timer.cancel()
    try:
        yield Cluster()
    finally:
        ray.shutdown()


def _prepare_local() -> None:
    for name, value in _LOCAL_SETTINGS.items():
        os.environ.setdefault(name, value)
    if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token":
        # Nobody else has to know it; without, Ray would write one to the home directory.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _init(address: str, order: PlaceWorkers) -> None:
    import ray

    settings = {"address": address, "logging_level": "error", "configure_logging": False}
    if address == LOCAL:
        # Only this engine's workers run there, so there is always room for them; GPUs are counted.
        settings |= {
            "num_cpus": order.num_ranks * order.num_cpus,
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
            # Ray opens the directory it is given to everybody; the one around it keeps others out.
            "_temp_dir": os.path.join(order.directory, "r"),
        }
    ray.init(**settings)
