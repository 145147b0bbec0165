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
from splitserve.worker.sampling.sampler import Sampled


class Pooler:
    """Takes vectors where another model samples.

    Args:
        device: of the hidden states.
        mode: the last token's state, or of prompts that are computed whole the first one's, the mean of all
            or the largest of each element.
        dense: layers that the vectors go through then.
        classify: makes the numbers of labels of pooled states, which take the place of the vectors; None if
            there are no labels.
    """

    def __init__(
        self,
        device: Device,
        mode: PoolingMode = "lasttoken",
        dense: Sequence[DenseLayer] = (),
        classify: Callable[[torch.Tensor], torch.Tensor | None] | None = None,
    ) -> None:
        self._device = device
        self._mode = mode
        self._dense = dense
        self._classify = classify

    def with_outputs(self, inputs: StepInputs) -> StepInputs:
        """Return a step with the tokens whose hidden states are needed."""
        if inputs.outputs is None or self._mode == "lasttoken":
            return inputs
        if self._mode == "cls":
            return inputs._replace(outputs=inputs.cu_seqlens[inputs.sampling])
        return inputs._replace(outputs=None)

    def pool(self, hidden: torch.Tensor, inputs: StepInputs) -> tuple[Sampled, list[Pooled]]:
        """Return the rows that have computed all their tokens, with token 0 each, and their vectors.

        Args:
            hidden: [T, H] of the step, or of its outputs.
            inputs: its layout.
        """
        rows = inputs.rows[inputs.sampling]
        vectors = self._vectors(hidden, inputs) if len(rows) else np.empty((0, 0), np.float32)
        are_numbers = np.asarray(np.isfinite(vectors).all(axis=1))
        pooled = [
            Pooled(int(row), pack_float32(vector))
            for row, vector, is_number in zip(rows, vectors, are_numbers, strict=True)
            if is_number
        ]
        errors = [numerical_error(int(row)) for row in rows[~are_numbers]]
        good = rows[are_numbers]
        return Sampled(good, np.zeros(len(good), np.int32), [], errors), pooled

    def _vectors(self, hidden: torch.Tensor, inputs: StepInputs) -> npt.NDArray[np.float32]:
        """Return the vectors of the rows that are done, float32 [n, D], n >= 1."""
        if self._mode in ("mean", "max"):
            states = self._device.fetch(hidden.to(torch.float32))
            (pooled,) = self._device.place([torch.from_numpy(self._reduced(states, inputs))])
        else:
            places, pooled = self._places(inputs), hidden
            if len(places) != len(hidden):
                pooled = hidden[self._device.place([torch.from_numpy(places)])[0]]
        if self._classify is not None:
            numbers = self._classify(pooled.to(hidden.dtype))
            assert numbers is not None, "every rank has the head"
            return self._device.fetch(numbers)
        pooled = pooled.to(torch.float32)
        for layer in self._dense:
            pooled = layer(pooled)
        return self._device.fetch(pooled)

    def _places(self, inputs: StepInputs) -> Int32:
        """Return where the state of each row that is done stands among the hidden states."""
        if self._mode == "cls" and inputs.outputs is None:
            return inputs.cu_seqlens[inputs.sampling]
        return inputs.hidden_of(inputs.sampling)

    def _reduced(self, states: npt.NDArray[np.float32], inputs: StepInputs) -> npt.NDArray[np.float32]:
        """Return mean or maximum of the states of each row; numpy adds them in their order."""
        ends = inputs.cu_seqlens
        spans = [states[ends[i] : ends[i + 1]] for i in inputs.sampling]
        if self._mode == "max":
            return np.stack([span.max(axis=0) for span in spans])
        return np.stack([np.add.reduce(span, axis=0) / np.float32(len(span)) for span in spans])
