"""What the simulated executor pretends to serve: vocabulary, limits of a checkpoint, without its weights."""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine_core.errors import ModelLoadError
from engine_core.executor.simulated_tokens import TokenRule
from engine_core.executor.simulated_worker import SimulatedModel


class _Checkpoint(msgspec.Struct, frozen=True):
    """The fields of config.json that the simulation uses."""

    vocab_size: int
    max_position_embeddings: int = 4096
    eos_token_id: int | list[int] | None = None


def simulated_model(directory: str) -> SimulatedModel:
    """Describe the checkpoint in a directory; "" is a made-up model.

    Raises:
        ModelLoadError: config.json is missing or says nothing usable.
    """
    if not directory:
        return SimulatedModel()
    path = Path(directory) / "config.json"
    try:
        checkpoint = msgspec.json.decode(path.read_bytes(), type=_Checkpoint)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ModelLoadError(f"{path}: {error}") from None
    eos = checkpoint.eos_token_id
    eos_token_ids = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
    rule = TokenRule(vocab_size=checkpoint.vocab_size, eos_token_ids=eos_token_ids)
    return SimulatedModel(rule=rule, max_model_len=checkpoint.max_position_embeddings, path=directory)
