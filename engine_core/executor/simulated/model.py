"""What does a simulated worker claim to serve? A checkpoint's vocabulary and limits, without its weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from splitserve.engine_core.checkpoint.config.common_fields import MAX_LEN, MAX_VOCAB, open_config
from splitserve.engine_core.executor.simulated.tokens import TokenRule
from splitserve.engine_core.ipc.wire import ModelInfo


@dataclass(slots=True, frozen=True)
class SimulatedModel:
    """The model that a simulated worker reports.

    Attributes:
        rule: how tokens are sampled; vocabulary and EOS ids are taken from it. max_model_len: longest
        sequence in tokens. path: shown as the model's path. block_bytes: bytes of one KV block.
        available_bytes: memory offered to the KV cache. verify: keep a ShadowKV and refuse steps that break
        the protocol. Costs O(sequence length) per row and step. block_size: tokens per KV block; used to
        verify only. sliding_window: tokens a token sees in the first group of layers; 0 for all.
        group_windows: see ModelInfo. max_rows: of a batch.
    """

    rule: TokenRule = field(default_factory=TokenRule)
    max_model_len: int = 4096
    path: str = "simulated"
    block_bytes: int = 4096
    available_bytes: int = 2**24
    verify: bool = False
    block_size: int = 16
    sliding_window: int = 0
    group_windows: tuple[int, ...] = ()
    # Of the longest batch that can be configured; untouched pages cost nothing but their allocation.
    max_rows: int = 65536

    def info(self) -> ModelInfo:
        """Return the model as the wire describes it."""
        return ModelInfo(
            path=self.path,
            architecture="Simulated",
            dtype="float32",
            vocab_size=self.rule.vocab_size,
            max_model_len=self.max_model_len,
            eos_token_ids=list(self.rule.eos_token_ids),
            sliding_window=self.sliding_window,
            group_windows=list(self.group_windows),
        )


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
