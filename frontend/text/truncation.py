"""Which tokens of a prompt are kept when its sender would rather lose some than be refused?"""

from __future__ import annotations

from typing import Literal, NamedTuple

from splitserve.engine_core.errors import InvalidRequestError

TruncationSide = Literal["left", "right"]


class Truncation(NamedTuple):
    """How much of a prompt is kept.

    Attributes:
        num_tokens: at most so many, at least 1.
        side: which end loses tokens.
    """

    num_tokens: int
    side: TruncationSide = "left"

    def cut(self, token_ids: list[int], num_before: int = 0, num_after: int = 0) -> list[int]:
        """Return the tokens that are kept.

        Args:
            token_ids: of the prompt.
            num_before: tokens in front (BOS and the like) that stay as long as there is room for others.
            num_after: the same behind.
        """
        num_lost = len(token_ids) - self.num_tokens
        if num_lost <= 0:
            return token_ids
        if self.num_tokens <= num_before + num_after:
            num_before = num_after = 0
        start = num_before if self.side == "left" else len(token_ids) - num_after - num_lost
        return token_ids[:start] + token_ids[start + num_lost :]


def read_truncation(
    num_tokens: int | None, side: TruncationSide | None, max_tokens: int, max_model_len: int
) -> Truncation | None:
    """Return how prompts are truncated, None for not at all.

    Args:
        num_tokens: truncate_prompt_tokens; -1 leaves room for max_tokens.
        side: truncation_side.
        max_tokens: output tokens that will be generated at most.
        max_model_len: what the context holds.

    Raises:
        InvalidRequestError: names the range.
    """
    if num_tokens is None:
        return None
    if num_tokens != -1 and not 1 <= num_tokens <= max_model_len:
        raise InvalidRequestError(
            f"truncate_prompt_tokens must be -1 or an integer from 1 to {max_model_len}, got {num_tokens}",
            "truncate_prompt_tokens",
        )
    # What leaves no room at all is refused with the numbers, where every prompt is held to the context.
    kept = max(1, max_model_len - max(1, max_tokens)) if num_tokens == -1 else num_tokens
    return Truncation(kept, side or "left")
