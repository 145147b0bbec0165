"""Can the steps of a model be recorded? A step is, and a replay with other tokens is compared with a run."""

from __future__ import annotations

import logging

import torch

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.process.logs import log_event
from splitserve.worker.attention.base import AttentionBackend
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.generic.model import TransformersModel
from splitserve.worker.kv_cache.layout import BlockShape, KVCache, layer_caches
from splitserve.worker.ops.decode import Recording

logger = logging.getLogger(__name__)

_BLOCK_SIZE = 16
# Of both rows, in the step that is recorded and in another one.
_RECORDED, _OTHER = (3, 11), (14, 6)


@torch.inference_mode()
def check_recording(model: TransformersModel, config: ModelConfig, backend: AttentionBackend) -> None:
    """Let a model be recorded if a replay has the bits of a step; else say why it is not."""
    if not model.is_recordable:
        return
    reason = "" if config.max_model_len < _BLOCK_SIZE else _difference(model, config, backend)
    if reason:
        model.is_recordable = False
        log_event(logger, logging.WARNING, "steps_not_recorded", path=config.path, reason=reason[:500])


def _difference(model: TransformersModel, config: ModelConfig, backend: AttentionBackend) -> str:
    """Return what a replay does not do as a step does, "" if it does the same."""
    sizes = (model.num_layers, model.num_kv_heads, _BLOCK_SIZE, model.head_dim)
    caches = layer_caches(backend.allocate(BlockShape(*sizes, model.workspace.dtype), 2))
    step = _Step(config.vocab_size)
    try:
        step.fill(_RECORDED)
        # As steps are: one that is recorded is never the first of its size.
        _run(model, step, caches)
        with Recording() as recording:
            hidden, logits = _run(model, step, caches)
    except Exception as error:
        # Of any kind: the code of each architecture is somebody else's.
        return str(error) or type(error).__name__
    step.fill(_OTHER)
    expected = [part.clone() for part in _run(model, step, caches)]
    recording.replay()
    if all(map(_are_same, (hidden, logits), expected)):
        return ""
    return "a replay has other bits than a step"


class _Step:
    """A step of one token in each of two rows, on memory that stays."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.token_ids = torch.zeros(2, dtype=torch.int32)
        self.meta = AttentionMetadata(
            positions=torch.zeros(2, dtype=torch.int32),
            slot_mapping=torch.zeros(2, dtype=torch.int32),
            block_tables=torch.arange(2, dtype=torch.int32).unsqueeze(1),
            cu_seqlens_q=torch.arange(3, dtype=torch.int32),
            seq_lens=torch.zeros(2, dtype=torch.int32),
        )

    def fill(self, positions: tuple[int, int]) -> None:
        """Let it be the step for tokens at these positions."""
        self.meta.positions.copy_(torch.tensor(positions))
        self.meta.slot_mapping.copy_(self.meta.positions + torch.tensor((0, _BLOCK_SIZE)))
        self.meta.seq_lens.copy_(self.meta.positions + 1)
        self.token_ids.copy_(torch.tensor(positions) * 7919 % self._vocab_size)


def _run(model: TransformersModel, step: _Step, caches: list[KVCache]) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = model.states(step.token_ids, step.meta, caches)
    logits = model.compute_logits(hidden) if model.has_logits else None
    return hidden, hidden if logits is None else logits


def _are_same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(found.view(torch.uint8), expected.contiguous().view(torch.uint8))
