"""The simulated executor that a command line asks for: the checkpoint's sizes without its weights."""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine_core.clock import Clock
from engine_core.config import EngineConfig
from engine_core.errors import ModelLoadError
from engine_core.executor.simulated import SimulatedExecutor
from engine_core.executor.simulated_tokens import TokenRule
from engine_core.executor.simulated_worker import SimulatedModel


class _Checkpoint(msgspec.Struct, frozen=True):
    """The fields of a checkpoint's config.json that a simulation needs."""

    vocab_size: int = 32000
    max_position_embeddings: int = 4096
    eos_token_id: int | list[int] | None = None


def make_simulated_executor(config: EngineConfig, clock: Clock) -> SimulatedExecutor:
    """Build the executor for `--executor simulated`.

    Args:
        config: `model` may be a checkpoint directory, whose config.json then gives vocabulary, EOS ids and
            context length, or anything else, which then is just the name of a model of 32000 tokens.
        clock: tells when a step is over.

    Raises:
        ModelLoadError: the config.json is there but unusable.
    """
    checkpoint = _read_checkpoint(Path(config.model) / "config.json") if config.model else _Checkpoint()
    eos = checkpoint.eos_token_id
    eos_token_ids = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
    model = SimulatedModel(
        rule=TokenRule(vocab_size=checkpoint.vocab_size, eos_token_ids=eos_token_ids),
        max_model_len=checkpoint.max_position_embeddings,
        path=config.model,
    )
    return SimulatedExecutor(clock, model, step_time_s=config.simulated_step_ms / 1000)


def _read_checkpoint(path: Path) -> _Checkpoint:
    if not path.is_file():
        return _Checkpoint()
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Checkpoint)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path}: {error}") from None
