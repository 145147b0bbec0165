"""A model that clients can ask for: what the engine reports, and the assets that this frontend loaded."""

from __future__ import annotations

from dataclasses import dataclass

from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.frontend.text.model_assets import ModelAssets


@dataclass(slots=True, frozen=True)
class ServedModel:
    """A model that at least one ready engine serves.

    Attributes:
        names: the names that clients may use; the first is the main one.
        max_logprobs: largest number of top logprobs the engine gives.
        max_num_seqs: requests one engine runs at a time.
        epoch: epoch of the engine that reported it.
        created: Unix time at which this process first saw the model.
        max_num_waiting: requests that may wait on one engine in addition to those running.
    """

    names: tuple[str, ...]
    info: ModelInfo
    assets: ModelAssets
    epoch: int
    max_num_seqs: int
    max_logprobs: int
    created: int
    max_num_waiting: int = 4096

    @property
    def identity(self) -> str:
        """What two engines have in common if a request of one can go on at the other.

        The name alone does not do: an engine may come back with another checkpoint under the same one.
        """
        info = self.info
        parts = (self.names[0], info.architecture, info.num_params, info.vocab_size, info.pooled_size)
        return f"{parts} {info.eos_token_ids} {info.labels}"

    @property
    def max_num_open(self) -> int:
        """Most requests that one engine holds, running and waiting."""
        return self.max_num_seqs + self.max_num_waiting
