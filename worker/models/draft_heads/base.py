"""The interface between a drafter and a head: a model of one layer that reads another's hidden states."""

from __future__ import annotations

from typing import Protocol

import torch

from splitserve.worker.layers.parameter import PackedParameter
from splitserve.worker.models.base import Model


class Vocabulary(Protocol):
    """What turns tokens into vectors, and vectors into logits of tokens, all of them on one rank."""

    @property
    def embedding_weight(self) -> PackedParameter:
        """The rows of the token embedding."""

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Return fp32 logits [S, V] of [S, H]."""


class HeadModel(Model, Protocol):
    """A Model whose tokens stand behind what it reads: put() features, then forward() the tokens.

    What forward() returns are the features of the next token, and compute_logits() says of it what follows.
    """

    def serve(self, model: Model, vocabulary: Vocabulary | None = None) -> None:
        """Draft for a model, which hands out hidden states.

        Args:
            model: of one rank, or a rank's shard of it.
            vocabulary: serves where this has no embedding or output head; None for the model's, which is
                whole then.
        """

    def states(self, places: torch.Tensor) -> torch.Tensor:
        """Return the features [n, H] of tokens of the model's last pass; the next one may overwrite them.

        Args:
            places: int64 [n] on the device, of the tokens among those of the pass.
        """

    def put(self, features: torch.Tensor) -> None:
        """Have features [T, H] for the tokens of the next pass; they may be what the last one returned."""
