"""Embedding and output head: ids to vectors, vectors to logits; the vocabulary is sharded over the ranks."""

from __future__ import annotations

import torch

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.ops.matrix import VocabularyPart

# An output head's tensor is `lm_head`.weight in every architecture.
HEAD = "lm_head"


class Embedding:
    """One learned row per id.

    Args:
        role: name of the output buffer in the workspace.
        name: its tensor in the checkpoint is `name`.weight [num_rows, size].
        is_head: the output head shares its weight.
        multiplier: of its rows.
        is_whole: every rank holds all rows instead of a shard.
        first_row: of a whole one: the rows before it are left out, and ids count from it.
    """

    def __init__(
        self,
        ctx: LayerContext,
        role: str,
        name: str,
        shape: tuple[int, int],
        *,
        is_head: bool = False,
        multiplier: float = 1.0,
        is_whole: bool = False,
        first_row: int = 0,
    ) -> None:
        self._ops = ctx.ops
        self._group = None if is_whole else ctx.group
        self._workspace = ctx.workspace
        self._role = role
        self._multiplier = multiplier
        rows = range(first_row, shape[0]) if is_whole else ctx.share(shape[0])
        self._part = VocabularyPart(rows.start, shape[0])
        declare = ctx.plan.declare_head if is_head else ctx.plan.declare_rows
        self.weight = declare(f"{name}.weight", shape, rows)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of ids (int32 [T]) as [T, size] in this layer's buffer."""
        out = self._workspace.take(self._role, ids.shape[0], self.weight.shape[1])
        if self._group is None:
            self._ops.embedding(out, ids, self.weight.weight)
        else:
            own = self._workspace.take("own_rows", *out.shape)
            self._ops.embedding(own, ids, self.weight.weight, self._part)
            # All but one of the ranks add zeros, so this is exact.
            self._group.sum_into(out, own)
        if self._multiplier != 1.0:
            self._ops.scale(out, out, self._multiplier)
        return out


class OutputHead:
    """hidden [S, H] -> fp32 logits [S, V], on the rank that samples.

    Args:
        name: its tensor in the checkpoint is `name`.weight [V, H].
        tied: the embedding whose weight it shares; None if it has its own.
        multiplier: of the logits.
        cap: logits are capped softly at this; 0: they are not.

    Attributes:
        weight: this rank's shard of it.
    """

    def __init__(
        self,
        ctx: LayerContext,
        name: str,
        shape: tuple[int, int],
        tied: Embedding | None,
        multiplier: float = 1.0,
        cap: float = 0.0,
    ) -> None:
        self._ops = ctx.ops
        self._group = ctx.group
        self._workspace = ctx.workspace
        self._vocab_size = shape[0]
        self._multiplier, self._cap = multiplier, cap
        rows = ctx.share(shape[0])
        self.weight = tied.weight if tied else ctx.plan.declare_head(f"{name}.weight", shape, rows)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Return the logits in a buffer that the next call overwrites; None on ranks that do not sample."""
        count = hidden.shape[0]
        own = self._workspace.take("logits", count, self.weight.shape[0], torch.float32)
        self._ops.linear(own, hidden, self.weight.weight)
        if self._multiplier != 1.0:
            self._ops.scale(own, own, self._multiplier)
        if self._cap:
            self._ops.soft_cap(own, own, self._cap)
        if self._group is None:
            return own
        out = None
        if self._group.rank == 0:
            out = self._workspace.take("all_logits", count, self._vocab_size, torch.float32)
        self._group.gather_columns(out, own, self._vocab_size)
        return out


def token_embedding(ctx: LayerContext, config: ModelConfig, name: str) -> Embedding:
    """Return the input embedding of a model; its output is the residual."""
    shape = (config.vocab_size, config.hidden_size)
    multipliers = config.traits.multipliers
    multiplier = multipliers.embedding
    if multipliers.is_embedding_rounded:
        multiplier = torch.tensor(multiplier, dtype=ctx.workspace.dtype).item()
    return Embedding(ctx, "residual", name, shape, is_head=config.tie_word_embeddings, multiplier=multiplier)


def output_head(
    ctx: LayerContext, config: ModelConfig, embedding_name: str, embedding: Embedding | None
) -> OutputHead:
    """Return the output head of a model.

    Args:
        ctx: context of the model.
        config: says whether the head is tied to the embedding.
        embedding_name: of the embedding's tensor.
        embedding: None if an earlier stage holds it; a tied head then loads its own copy.
    """
    shape = (config.vocab_size, config.hidden_size)
    multiplier, cap = config.traits.multipliers.logits, config.traits.logits_cap
    if not config.tie_word_embeddings:
        return OutputHead(ctx, HEAD, shape, None, multiplier, cap)
    return OutputHead(ctx, embedding_name, shape, embedding, multiplier, cap)
