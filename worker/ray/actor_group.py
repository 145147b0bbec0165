"""An engine's actors: room for them, which rank each is, their start, and how one ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING

from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.ipc.curve import ClientKeys
from splitserve.engine_core.ipc.launcher_messages import Seat
from splitserve.engine_core.settings.worker_settings import WorkerPlace
from splitserve.worker.ray.actor import Spot, WorkerActor
from splitserve.worker.ray.cluster import Cluster, node_name

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from ray.util.placement_group import PlacementGroup


@contextmanager
def reserved_room(
    cluster: Cluster, num_ranks: int, bundle: Mapping[str, int], timeout_s: float
) -> Iterator[PlacementGroup]:
    """Reserve what every rank needs, on as few nodes as possible, and give it back in the end.

    Raises:
        WorkerError: there was no room in time; says what is there.
    """
    from ray.util.placement_group import placement_group, remove_placement_group

    room = placement_group([dict(bundle)] * num_ranks, strategy="PACK")
    try:
        if not room.wait(timeout_s):
            [(resource, amount)] = bundle.items()
            raise WorkerError(
                f"no room within {timeout_s:g} s for {num_ranks} workers of {resource} {amount} each: "
                f"{cluster.describe(resource)}"
            )
        yield room
    finally:
        remove_placement_group(room)


class ActorGroup:
    """The actors in the order of their ranks: those of the engine's own node first, then node by node.

    So neighbours share a node wherever they can, and rank 0, which answers the engine, is close to it.

    Attributes:
        rendezvous: where the ranks can meet, on rank 0's node.
    """

    def __init__(
        self, cluster: Cluster, room: PlacementGroup, bundle: Mapping[str, int], timeout_s: float
    ) -> None:
        """Start an actor in each bundle of the room.

        Raises:
            WorkerError: an actor cannot be started, or not in time.
        """
        import ray

        actors = [_start(room, index, bundle) for index in range(len(room.bundle_specs))]
        try:
            spots: list[Spot] = ray.get([actor.locate.remote() for actor in actors], timeout=timeout_s)
            placed = sorted(
                zip(spots, actors, strict=True),
                key=lambda pair: (pair[0].node_id != cluster.node_id, pair[0].node_id, pair[0].pid),
            )
            self._spots = [spot for spot, _ in placed]
            self._actors = [actor for _, actor in placed]
            self.rendezvous: str = ray.get(self._actors[0].open_rendezvous.remote(), timeout=timeout_s)
        except ray.exceptions.RayError as error:
            raise WorkerError(f"the workers' actors could not be started: {_last_line(error)}") from error

    def seats(self, device: str) -> list[Seat]:
        """Return where each rank is."""
        counts = Counter(spot.node_id for spot in self._spots)
        # Ray shows an actor no other GPU than its own.
        return [
            Seat(node_name(spot.address, spot.node_id), 1 if device == "cuda" else counts[spot.node_id])
            for spot in self._spots
        ]

    def run(self, places: Sequence[WorkerPlace], keys: ClientKeys) -> list[Future[int]]:
        """Run the workers; each future is done when its worker has ended."""
        pairs = zip(self._actors, places, strict=True)
        return [actor.run.remote(place, keys).future() for actor, place in pairs]


def describe_end(run: Future[int]) -> str:
    """Describe how a worker exited, from the future of its run."""
    from ray.exceptions import RayActorError, RayTaskError

    error = run.exception()
    if error is None:
        return f"exit code {run.result()}"
    if isinstance(error, RayTaskError):
        return f"it failed: {_last_line(error)}"
    if isinstance(error, RayActorError):
        # What Ray says of it is a paragraph of guesses.
        return "its node died" if "node has died" in str(error) else "its process died"
    return f"{type(error).__name__}: {_last_line(error)}"


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _start(room: PlacementGroup, index: int, bundle: Mapping[str, int]) -> ActorHandle[WorkerActor]:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    options = ray.remote(WorkerActor).options(
        num_cpus=bundle.get("CPU", 0),
        num_gpus=bundle.get("GPU", 0),
        max_restarts=0,
        scheduling_strategy=PlacementGroupSchedulingStrategy(room, placement_group_bundle_index=index),
    )
    return options.remote()
