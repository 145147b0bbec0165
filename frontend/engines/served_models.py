"""Which models do the engines of a pool serve, and which of them has a name?"""

from __future__ import annotations

from collections.abc import Sequence

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.engines.readiness import Readiness
from splitserve.frontend.engines.replica import EngineReplica
from splitserve.frontend.engines.served_model import ServedModel


class ServedModels:
    """The models of a pool's engines.

    Args:
        replicas: of the pool, which owns the list.
        readiness: of the pool.
    """

    def __init__(self, replicas: Sequence[EngineReplica], readiness: Readiness) -> None:
        self._replicas = replicas
        self._readiness = readiness

    def all(self) -> list[ServedModel]:
        """Return the models of ready or draining engines, each once, in order of address."""
        by_name = {
            replica.served.names[0]: replica.served for replica in reversed(self._replicas) if replica.served
        }
        return list(reversed(by_name.values()))

    def find(self, name: str) -> ServedModel:
        """Return a model by any of its names, or what the adapter of that name makes of it; see the pool."""
        models = self.all()
        if not models:
            raise self._readiness.nothing_ready()
        if not name:
            return models[0]
        for model in models:
            found = model.named(name)
            if found is not None:
                return found
        if any(name in replica.known_names for replica in self._replicas):
            raise self._readiness.nothing_ready(name)
        error = InvalidRequestError(f"the model {name[:200]!r} does not exist", "model", "model_not_found")
        error.status = 404
        raise error
