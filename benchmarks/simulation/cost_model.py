"""How long the worker takes for a step: a line over six counts of what the step computes."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from splitserve.engine_core.errors import ConfigError


class StepWork(NamedTuple):
    """What one step computes.

    Attributes:
        prefill_tokens: tokens of rows that compute more than one.
        decode_rows: rows that compute one token.
        context_tokens: KV entries that are read, once per row.
        attention_pairs: (query, key) pairs of the prefilling rows, which grow with the square of a prompt.
        moves: blocks copied between pool and CPU offload tier.
    """

    prefill_tokens: int
    decode_rows: int
    context_tokens: int
    attention_pairs: int
    moves: int = 0


class CostModel(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds per step, and per unit of StepWork.

    The defaults are round figures of the order of a model of 8 billion parameters on one large GPU; they are
    made up, not measured. `--fit` measures a real worker. A move is 2 MiB over PCIe, beside nothing else.
    """

    step_us: float = 6000.0
    prefill_token_us: float = 40.0
    decode_row_us: float = 15.0
    context_token_us: float = 0.04
    attention_pair_us: float = 0.001
    move_block_us: float = 80.0

    def validate(self) -> None:
        """Raise ConfigError when a cost is negative or a step could take no time at all."""
        for name in self.__struct_fields__:
            if not 0 <= getattr(self, name) <= 1e9:
                raise ConfigError(f"{name} must be from 0 to 1e9, got {getattr(self, name)}")
        if self.step_us == 0 and min(self.prefill_token_us, self.decode_row_us) == 0:
            raise ConfigError(
                "a step must take time: step_us, or prefill_token_us and decode_row_us, above 0"
            )

    def step_s(self, work: StepWork) -> float:
        """Return the seconds a step takes."""
        return 1e-6 * (
            self.step_us
            + self.prefill_token_us * work.prefill_tokens
            + self.decode_row_us * work.decode_rows
            + self.context_token_us * work.context_tokens
            + self.attention_pair_us * work.attention_pairs
            + self.move_block_us * work.moves
        )
