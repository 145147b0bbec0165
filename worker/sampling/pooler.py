"""The vectors of prompts: the hidden state of each row's last token, after the final norm."""

from __future__ import annotations

import numpy as np
import torch

from splitserve.engine_core.ipc.codec import pack_float32
from splitserve.engine_core.ipc.wire import Pooled
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.device.base import Device
from splitserve.worker.sampling.logprobs import numerical_error
from splitserve.worker.sampling.sampler import Sampled


class Pooler:
    """Takes vectors where another model samples.

    Args:
        device: of the hidden states.
    """

    def __init__(self, device: Device) -> None:
        self._device = device

    def pool(self, hidden: torch.Tensor, inputs: StepInputs) -> tuple[Sampled, list[Pooled]]:
        """Return the rows that have computed all their tokens, with token 0 each, and their vectors.

        Args:
            hidden: [T, H] of the step, or of its outputs.
            inputs: its layout.
        """
        rows = inputs.rows[inputs.sampling]
        places = inputs.hidden_of(inputs.sampling)
        if len(rows) and len(rows) != len(hidden):
            hidden = hidden[self._device.place([torch.from_numpy(places)])[0]]
        vectors = self._device.fetch(hidden.to(torch.float32)) if len(rows) else np.empty((0, 0), np.float32)
        are_numbers = np.asarray(np.isfinite(vectors).all(axis=1))
        pooled = [
            Pooled(int(row), pack_float32(vector))
            for row, vector, is_number in zip(rows, vectors, are_numbers, strict=True)
            if is_number
        ]
        errors = [numerical_error(int(row)) for row in rows[~are_numbers]]
        good = rows[are_numbers]
        return Sampled(good, np.zeros(len(good), np.int32), [], errors), pooled
