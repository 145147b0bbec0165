"""What the simulated executor pretends to serve: vocabulary, limits of a checkpoint, without its weights."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.checkpoint.config.common_fields import MAX_LEN, MAX_VOCAB, open_config
from splitserve.engine_core.executor.simulated.tokens import TokenRule
from splitserve.engine_core.executor.simulated.worker import SimulatedModel


def simulated_model(directory: str) -> SimulatedModel:
    """Describe the checkpoint in a directory; "" is a made-up model.

    Raises:
        ModelLoadError: config.json is missing, or one of the three fields that count is wrong.
    """
    if not directory:
        return SimulatedModel()
    config = open_config(Path(directory))
    vocab_size = config.integer("vocab_size", 1, MAX_VOCAB)
    ends = tuple(i for i in config.token_ids("eos_token_id") if 0 <= i < vocab_size)
    rule = TokenRule(vocab_size=vocab_size, eos_token_ids=ends)
    max_model_len = config.integer("max_position_embeddings", 1, MAX_LEN, 4096)
    return SimulatedModel(rule=rule, max_model_len=max_model_len, path=directory)
