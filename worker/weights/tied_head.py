"""Whether a checkpoint that claims a tied output head holds a separate one after all."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.weight_files import Checkpoint, CheckpointTensor, has_weights
from splitserve.engine_core.process.logs import log_event
from splitserve.worker.layers.embedding import HEAD

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 16 * 2**20


def as_stored(config: ModelConfig, embedding: str, prefix: str) -> ModelConfig:
    """Return the config with a head of its own if the files hold one, whatever it says; see has_own_head."""
    if config.tie_word_embeddings and has_own_head(Path(config.path), embedding, prefix):
        return msgspec.structs.replace(config, tie_word_embeddings=False)
    return config


def has_own_head(directory: Path, embedding: str, prefix: str) -> bool:
    """Return whether the files hold a head that differs from the embedding, and log it.

    Such a head was trained: `tie_word_embeddings` is wrong then, or the default of an architecture was taken
    for it. Files that hold the same values twice are read twice, which is rare and costs the disk's time.

    Args:
        directory: of the checkpoint; without weight files there is no head.
        embedding: name of the embedding, without ".weight".
        prefix: see registry.Family.

    Raises:
        ModelLoadError: a file is damaged.
    """
    if not has_weights(directory):
        return False
    with Checkpoint.open(directory) as checkpoint:
        head = checkpoint.find(f"{HEAD}.weight")
        table = checkpoint.find(f"{embedding}.weight", prefix)
        # Without an embedding there is nothing to run, which the loader will say.
        if head is None or table is None or _are_equal(head, table):
            return False
    detail = f"{HEAD}.weight differs from {table.name} and is used"
    log_event(logger, logging.WARNING, "head_not_tied", path=str(directory), detail=detail)
    return True


def _are_equal(first: CheckpointTensor, second: CheckpointTensor) -> bool:
    one, other = first.entry, second.entry
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    offsets = range(0, one.num_bytes, _CHUNK_BYTES)
    return all(_chunk(first, offset) == _chunk(second, offset) for offset in offsets)


def _chunk(tensor: CheckpointTensor, offset: int) -> bytearray:
    chunk = bytearray(min(_CHUNK_BYTES, tensor.entry.num_bytes - offset))
    tensor.file.read_into(tensor.entry.begin + offset, memoryview(chunk))
    return chunk
