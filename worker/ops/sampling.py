"""The operations that turn logits into tokens and logprobs, or states into vectors, on any device.

R: requests, V: vocabulary, T: tokens, H: hidden size. Errors and what differs on a GPU: see
worker.ops.interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor


class SamplingOps:
    """Operations on logits [R, V] or states [T, H], in place or into tensors the caller owns; stateless.

    Args:
        library: a tvm_ffi.Module that exports the kernels.
    """

    def __init__(self, library: Any) -> None:
        self._apply_penalties = library.apply_penalties
        self._edit_logits = library.edit_logits
        self._pool_rows = library.pool_rows
        self._sample = library.sample
        self._top_logprobs = library.top_logprobs
        self._token_logprobs = library.token_logprobs

    def pool_rows(
        self,
        totals: Tensor,
        states: Tensor,
        ends: Tensor,
        rows: Tensor,
        positions: Tensor,
        kind: Literal["sum", "weighted_sum", "max"],
    ) -> None:
        """Reduce hidden states to what they add up to, or to their maximum, token by token in float32.

        So a row's bits do not depend on the steps that its tokens take.

        Args:
            totals: float32 [any, H], of rows of the batch; those that are named get the states of this step.
            states: [T, H].
            ends: int32 [R + 1]: run r of tokens is states[ends[r] : ends[r + 1]].
            rows: int32 [R], the totals of each run, no two the same. On a GPU a row that is not there gets
                nothing.
            positions: int32 [R], of a run's first token in its row; 0 takes no notice of the total before.
            kind: "weighted_sum" multiplies the state at position p by p + 1.
        """
        self._pool_rows(totals, states, ends, rows, positions, kind)

    def apply_penalties(
        self,
        logits: Tensor,
        rows: Tensor,
        token_ids: Tensor,
        history_rows: Tensor,
        prompt_lens: Tensor,
        total_lens: Tensor,
        repetition: Tensor,
        frequency: Tensor,
        presence: Tensor,
    ) -> None:
        """Penalise tokens that a request has already seen, in place; cost follows the histories' length.

        The repetition penalty covers prompt and output: positive logits are divided by it, others multiplied.
        The frequency penalty times the number of occurrences among output tokens, and the presence penalty
        once, are subtracted after it.

        Args:
            logits: float32 [R, V].
            rows: int32 [P], distinct rows of logits to change.
            token_ids: int32 [any, L], histories: prompt, then output; negative ids are skipped.
            history_rows: int32 [P], the row of token_ids that belongs to each row of logits.
            prompt_lens: int32 [P], prompt tokens of each history.
            total_lens: int32 [P], prompt and output tokens of each history.
            repetition: float32 [P], above 0; 1: off.
            frequency: float32 [P]; 0: off.
            presence: like frequency.
        """
        self._apply_penalties(
            logits, rows, token_ids, history_rows, prompt_lens, total_lens, repetition, frequency, presence
        )

    def edit_logits(
        self, logits: Tensor, rows: Tensor, cu_edits: Tensor, token_ids: Tensor, values: Tensor
    ) -> None:
        """Add to single logits, in place; -inf forbids a token, whatever else is added; a NaN stays one.

        Args:
            logits: float32 [R, V].
            rows: int32 [P], distinct rows of logits to change.
            cu_edits: int32 [P + 1]: row rows[i] has the edits from cu_edits[i] to cu_edits[i + 1].
            token_ids: int32 [N]; one may be repeated within a row if all but one of its values are -inf.
            values: float32 [N].
        """
        self._edit_logits(logits, rows, cu_edits, token_ids, values)

    def sample(
        self,
        out_token_ids: Tensor,
        logits: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        seeds: Tensor,
        positions: Tensor,
        masks: Tensor | None = None,
        mask_rows: Tensor | None = None,
    ) -> None:
        """Draw one token per row: mask, temperature, min_p, top_k, top_p, noise.

        The noise is a hash of (seed, position, token id). Among equal logits the lower id comes first. Tokens
        with logit -inf are never drawn: a row of them alone gives token id -2. A row with a NaN, masked or
        not, gives -1.

        Args:
            out_token_ids: int32 [R].
            logits: float32 [R, V], not changed.
            temperature: float32 [R]; 0: the most likely token.
            top_k: int32 [R]; 0 or less: off.
            top_p: float32 [R]; 1: off. The fewest tokens whose mass reaches top_p stay, at least one.
            min_p: float32 [R]; 0: off. Tokens less likely than min_p times the likeliest go.
            seeds: int64 [R], the bits of an unsigned 64-bit seed.
            positions: int64 [R], on the CPU also int32: position of the token to be drawn.
            masks: int32 [any, ceil(V / 32)], a bit per token that may be drawn, the lowest of a word first;
                the logits of others count as -inf.
            mask_rows: int32 [R], the row of masks for each row of logits; negative: none. Comes with masks.
        """
        self._sample(
            out_token_ids, logits, temperature, top_k, top_p, min_p, seeds, positions, masks, mask_rows
        )

    def top_logprobs(
        self,
        out_ids: Tensor,
        out_logprobs: Tensor,
        out_ranks: Tensor,
        logits: Tensor,
        rows: Tensor,
        token_ids: Tensor,
    ) -> None:
        """Log-probabilities, by log_softmax of the raw logits, of one given token and of the k likeliest.

        Args:
            out_ids: int32 [P, 1 + k]: the given token, then the k likeliest, ties by lowest id; -1 fills up.
            out_logprobs: float32 [P, 1 + k].
            out_ranks: int32 [P], rank of the given token, from 1; 0 if the row has no finite maximum.
            logits: float32 [R, V].
            rows: int32 [P], rows of logits.
            token_ids: int32 [P], the given tokens.
        """
        self._top_logprobs(out_ids, out_logprobs, out_ranks, logits, rows, token_ids)

    def token_logprobs(
        self, out: Tensor, logits: Tensor, rows: Tensor, cu_tokens: Tensor, token_ids: Tensor
    ) -> None:
        """Log-probabilities, by log_softmax of the raw logits, of any number of given tokens per row.

        A token gets the same bits here as from top_logprobs. A row with a NaN gives NaN.

        Args:
            out: float32 [N].
            logits: float32 [R, V].
            rows: int32 [P], rows of logits.
            cu_tokens: int32 [P + 1]: row rows[i] is asked for token_ids[cu_tokens[i]:cu_tokens[i + 1]].
            token_ids: int32 [N].
        """
        self._token_logprobs(out, logits, rows, cu_tokens, token_ids)
