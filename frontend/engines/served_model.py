"""A model that clients can ask for: what the engine reports, and the assets that this frontend loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from splitserve.engine_core.ipc.messages import Ready
from splitserve.engine_core.ipc.wire import AdapterInfo, ModelInfo
from splitserve.frontend.text.model_assets import ModelAssets


@dataclass(slots=True, frozen=True)
class ServedModel:
    """A model that at least one ready engine serves, or what an adapter makes of it.

    Attributes:
        names: the names that clients may use; the first is the main one. With an adapter that has one.
        max_logprobs: largest number of top logprobs the engine gives.
        max_num_seqs: requests one engine runs at a time.
        epoch: epoch of the engine that reported it.
        created: Unix time at which this process first saw the model.
        max_num_waiting: requests that may wait on one engine in addition to those running.
        adapters: that the engine knows.
        adapter: that changes the model; None for none.
        parent: main name of the model without the adapter; "" if there is none.
    """

    names: tuple[str, ...]
    info: ModelInfo
    assets: ModelAssets
    epoch: int
    max_num_seqs: int
    max_logprobs: int
    created: int
    max_num_waiting: int = 4096
    adapters: Sequence[AdapterInfo] = ()
    adapter: AdapterInfo | None = None
    parent: str = ""

    @classmethod
    def of(cls, ready: Ready, assets: ModelAssets, created: int) -> ServedModel:
        """Return the model of an engine that is ready."""
        return cls(
            names=tuple(ready.served_model_names) or (ready.model.path,),
            info=ready.model,
            assets=assets,
            epoch=ready.epoch,
            max_num_seqs=ready.max_num_seqs,
            max_logprobs=ready.max_logprobs,
            created=created,
            max_num_waiting=ready.max_num_waiting,
        )

    @property
    def all_names(self) -> tuple[str, ...]:
        """Its names and those of its adapters."""
        return (*self.names, *(adapter.name for adapter in self.adapters))

    def with_adapters(self, adapters: Sequence[AdapterInfo]) -> ServedModel:
        """Return the model with the adapters that its engine told of last; itself if it has them."""
        return self if self.adapters is adapters else replace(self, adapters=adapters)

    @property
    def root(self) -> str:
        """Main name of the model without an adapter."""
        return self.parent or self.names[0]

    def named(self, name: str) -> ServedModel | None:
        """Return the model, or what an adapter makes of it, that has a name; None if nothing has it."""
        if name in self.names:
            return self
        for adapter in self.adapters:
            if adapter.name == name:
                return replace(self, names=(name,), adapter=adapter, parent=self.root)
        return None

    @property
    def identity(self) -> str:
        """What two engines have in common if a request of one can go on at the other.

        The name alone does not do: an engine may come back with another checkpoint under the same one. An
        adapter is compared by the engine.
        """
        info = self.info
        parts = (self.root, info.architecture, info.num_params, info.vocab_size, info.pooled_size)
        return f"{parts} {info.eos_token_ids} {info.labels}"

    @property
    def max_num_open(self) -> int:
        """Most requests that one engine holds, running and waiting."""
        return self.max_num_seqs + self.max_num_waiting
