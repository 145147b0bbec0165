"""The vectors of prompts, made of the hidden states of their tokens after the final norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from splitserve.engine_core.checkpoint.pooling import PoolingMode
from splitserve.engine_core.ipc.codec import pack_float32
from splitserve.engine_core.ipc.wire import Pooled
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.device.base import Device
from splitserve.worker.models.dense_layer import DenseLayer
from splitserve.worker.ops.columns import Int32
from splitserve.worker.sampling.logprobs import numerical_error
from splitserve.worker.sampling.reduction import REDUCTIONS, Reduction
from splitserve.worker.sampling.sampler import Sampled

Classify = Callable[[torch.Tensor], torch.Tensor | None]
Float32 = npt.NDArray[np.float32]
_NO_ROWS = np.zeros(0, np.bool_)


class Pooler:
    """Takes vectors where another model samples; single-threaded.

    Args:
        device: of the hidden states.
        mode: the last token's state, the first one's of prompts that are computed whole, or what a Reduction
            makes of all.
        dense: layers that the vectors go through then.
        classify: makes the numbers of labels of pooled states, which take the place of the vectors; None if
            there are no labels.
        is_shared: all ranks have to call classify together.
        pools_tokens: bool [rows], of the batch: whose vectors are those of each token, as the final norm
            leaves them. Their prompts are computed whole.
        num_rows: of the batch, for a mode that reads all tokens.
    """

    def __init__(
        self,
        device: Device,
        mode: PoolingMode = "lasttoken",
        dense: Sequence[DenseLayer] = (),
        classify: Classify | None = None,
        *,
        is_shared: bool = False,
        pools_tokens: npt.NDArray[np.bool_] = _NO_ROWS,
        num_rows: int = 0,
    ) -> None:
        self._device = device
        self._mode = mode
        self._reduction = Reduction(device, mode, num_rows) if mode in REDUCTIONS else None
        self._dense = dense
        self._classify = classify
        self._is_shared = is_shared
        self._pools_tokens = pools_tokens

    def with_outputs(self, inputs: StepInputs) -> StepInputs:
        """Return a step with the tokens whose hidden states are needed."""
        if inputs.outputs is None:
            return inputs
        if self._reduction is not None or self._wants_tokens(inputs.rows).any():
            return inputs._replace(outputs=None)
        if self._mode == "cls":
            return inputs._replace(outputs=inputs.cu_seqlens[inputs.sampling])
        return inputs

    def pool(self, hidden: torch.Tensor, inputs: StepInputs) -> tuple[Sampled, list[Pooled]]:
        """Return the rows that have computed all their tokens, with token 0 each, and their vectors.

        Args:
            hidden: [T, H] of the step, or of its outputs.
            inputs: its layout.
        """
        rows = inputs.rows[inputs.sampling]
        vectors = self._vectors(hidden, inputs)
        are_numbers = np.array([np.isfinite(vector).all() for vector in vectors], np.bool_)
        pooled = [
            Pooled(int(row), pack_float32(vector))
            for row, vector, is_number in zip(rows, vectors, are_numbers, strict=True)
            if is_number
        ]
        errors = [numerical_error(int(row)) for row in rows[~are_numbers]]
        good = rows[are_numbers]
        return Sampled(good, np.zeros(len(good), np.int32), [], errors), pooled

    def assist(self, hidden: torch.Tensor, inputs: StepInputs) -> None:
        """Do the part of another rank than the first in what its pool() does; arguments as there.

        Each rank has all hidden states, and the first one tells the engine.
        """
        if self._classify is not None and self._is_shared and len(inputs.sampling):
            self._classify(self._states(hidden, inputs).to(hidden.dtype))

    def _vectors(self, hidden: torch.Tensor, inputs: StepInputs) -> list[Float32]:
        """Return the vectors of the rows that are done, float32 [D] each, or [n * D] of a row's tokens."""
        if self._reduction is None and not len(inputs.sampling):
            return []
        pooled = self._states(hidden, inputs)
        if not len(inputs.sampling):
            return []
        if self._classify is not None:
            numbers = self._classify(pooled.to(hidden.dtype))
            assert numbers is not None, "the first rank has them"
            return list(self._device.fetch(numbers))
        pooled = pooled.to(torch.float32)
        for layer in self._dense:
            pooled = layer(pooled)
        vectors = list(self._device.fetch(pooled))
        wants_tokens = self._wants_tokens(inputs.rows[inputs.sampling])
        if wants_tokens.any():
            states, ends = self._device.fetch(hidden.to(torch.float32)), inputs.cu_seqlens
            for i in np.flatnonzero(wants_tokens).tolist():
                at = inputs.sampling[i]
                vectors[i] = states[ends[at] : ends[at + 1]].ravel()
        return vectors

    def _wants_tokens(self, rows: Int32) -> npt.NDArray[np.bool_]:
        return self._pools_tokens[rows] if len(self._pools_tokens) else _NO_ROWS

    def _states(self, hidden: torch.Tensor, inputs: StepInputs) -> torch.Tensor:
        """Return the pooled states of the rows that are done, [n, H]."""
        if self._reduction is not None:
            return self._reduction.reduce(hidden, inputs)
        places = self._places(inputs)
        if len(places) == len(hidden):
            return hidden
        return hidden[self._device.place([torch.from_numpy(places)])[0]]

    def _places(self, inputs: StepInputs) -> Int32:
        """Return where the state of each row that is done stands among the hidden states."""
        if self._mode == "cls" and inputs.outputs is None:
            return inputs.cu_seqlens[inputs.sampling]
        return inputs.hidden_of(inputs.sampling)
