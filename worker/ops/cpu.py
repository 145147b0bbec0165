"""The kernels of a step, one function per operation: thin, in place or into tensors the caller owns.

T: tokens of the batch, H: hidden size, D: head size, Hq and Hkv: query and KV heads, R: requests,
V: vocabulary. Activations are bfloat16 or float32 and all of one call have the same dtype. The last dimension
of every tensor is contiguous; the others may have any stride, so a slice of a fused QKV buffer needs no copy.
Every output row depends on its own inputs alone: the same bits in any batch, at any place in it, with any
number of threads.

Wrong ranks, shapes, devices and ids raise ValueError, wrong dtypes TypeError; both name the argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from splitserve.worker._native import load_library

if TYPE_CHECKING:
    from torch import Tensor

    from splitserve.worker.ops.interface import VocabularyPart
    from splitserve.worker.ops.packed_weight import PackedWeight

_lib = load_library("splitserve_cpu")
# Looked up once: an attribute of a module object costs more than the call.
_rms_norm = _lib.rms_norm
_fused_add_rms_norm = _lib.fused_add_rms_norm
_layer_norm = _lib.layer_norm
_fused_add_layer_norm = _lib.fused_add_layer_norm
_rotary_kv_write = _lib.rotary_kv_write
_silu_and_mul = _lib.silu_and_mul
_gelu = _lib.gelu
_kv_write = _lib.kv_write
_move_blocks = _lib.move_blocks
_sum_parts = _lib.sum_parts
_paged_attention = _lib.paged_attention
_linear = _lib.linear
_embedding = _lib.embedding
_apply_penalties = _lib.apply_penalties
_edit_logits = _lib.edit_logits
_sample = _lib.sample
_top_logprobs = _lib.top_logprobs
_token_logprobs = _lib.token_logprobs


def cpu_isa() -> str:
    """Instruction set in use: "portable", "avx2", "avx512" or "avx512_bf16"."""
    return str(_lib.cpu_isa())


def best_cpu_isa() -> str:
    """The most capable instruction set of this CPU, in use unless set_isa() chose another."""
    return str(_lib.best_cpu_isa())


def set_isa(name: str) -> None:
    """Use the kernels of one instruction set, process-wide; ValueError if this CPU lacks it."""
    _lib.set_isa(name)


def set_num_threads(num: int) -> None:
    """Threads a kernel may use, process-wide, 1 to 1024; until set, all the CPUs this process may run on."""
    _lib.set_num_threads(num)


def num_threads() -> int:
    """Threads a kernel may use."""
    return int(_lib.get_num_threads())


def multiply_peak(x: Tensor, rounds: int) -> int:
    """Multiply out of registers alone on all threads, for a ceiling; return the operations, two per product.

    Args:
        x: [32] numbers to multiply with each other, bfloat16 or float32 as in the products of linear.
        rounds: 1 to 2^32, of 1,024 products per thread.
    """
    return int(_lib.multiply_peak(x, rounds))


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
    """Write x / sqrt(mean(x^2) + eps) * weight to out, over the last dimension.

    Args:
        out: like x; may be x.
        x: [T, H].
        weight: [H].
        eps: added to the mean square.
    """
    _rms_norm(out, x, weight, eps)


def fused_add_rms_norm(out: Tensor, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """Add x to residual in place, rounded to its dtype, then out = rms_norm(residual).

    Args:
        out: [T, H]; out may be x.
        x: like out.
        residual: like out.
        weight: [H].
        eps: added to the mean square.
    """
    _fused_add_rms_norm(out, x, residual, weight, eps)


def layer_norm(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> None:
    """Write (x - mean(x)) / sqrt(var(x) + eps) * weight + bias to out, over the last dimension.

    Args:
        out: like x; may be x.
        x: [T, H].
        weight: [H].
        bias: like weight.
        eps: added to the variance.
    """
    _layer_norm(out, x, weight, bias, eps)


def fused_add_layer_norm(
    out: Tensor, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> None:
    """Add x to residual in place, rounded to its dtype, then out = layer_norm(residual).

    Args:
        out: [T, H]; out may be x.
        x: like out.
        residual: like out.
        weight: [H].
        bias: like weight.
        eps: added to the variance.
    """
    _fused_add_layer_norm(out, x, residual, weight, bias, eps)


def rotary_kv_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Norm queries and keys, turn them by their positions, and write keys and values into the paged cache.

    Element i of a head turns with element i + rot_dim / 2 (NeoX, Llama). Norms are those of rms_norm, over
    each head, and rounded before the rotation.

    Args:
        q: [T, Hq, D], in place; also of tokens whose slot is negative.
        k: [T, Hkv, D]; what it holds afterwards is not defined.
        v: like k, not changed.
        positions: int32 or int64 [T], each below max_pos.
        cos_sin: float32 [max_pos, rot_dim], rot_dim <= D: cosines, then sines, of the rot_dim / 2 angles.
        k_cache: as for kv_write.
        v_cache: like k_cache.
        slot_mapping: as for kv_write.
        q_norm: [D], weights of the queries' norm; None: they have none.
        k_norm: [D], of the keys' norm, or None.
        eps: added to the mean squares.
    """
    _rotary_kv_write(q, k, v, positions, cos_sin, k_cache, v_cache, slot_mapping, q_norm, k_norm, eps)


def silu_and_mul(out: Tensor, x: Tensor) -> None:
    """Write silu(gate) * up to out.

    Args:
        out: [T, I].
        x: [T, 2 * I]: gate, then up.
    """
    _silu_and_mul(out, x)


def gelu(out: Tensor, x: Tensor, approximate: Literal["none", "tanh"] = "none") -> None:
    """Gaussian error linear unit, exact or in its tanh form.

    Args:
        out: [T, I]; out may be x.
        x: like out.
        approximate: as in torch.nn.functional.gelu.
    """
    _gelu(out, x, approximate)


def sum_parts(out: Tensor, parts: Tensor, bias: Tensor | None = None, first: int = 0) -> None:
    """Write the sum of several tensors' elements, added in order in float32, the bias last, and rounded once.

    Args:
        out: [M], elements first to first + M of a matrix [T, N] whose rows follow one another.
        parts: [P, M], float32 or like out, P >= 1.
        bias: [N], added to each row of that matrix; None for none.
        first: 0 or more.
    """
    _sum_parts(out, parts, bias, first)


def kv_write(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write this step's keys and values into the paged cache.

    Args:
        k: [T, Hkv, D].
        v: like k.
        k_cache: [num_blocks, Hkv, block_size, D], the last two dimensions contiguous; within them keys lie as
            [D / P, block_size, P], where P elements are 4 bytes; block_size and D are multiples of P.
        v_cache: like k_cache; within them values lie as [block_size / P, D, P].
        slot_mapping: int32 or int64 [T], block * block_size + offset; a negative slot is skipped.
    """
    _kv_write(k, v, k_cache, v_cache, slot_mapping)


def move_blocks(pool: Tensor, host: Tensor, moves_from: Tensor, moves_to: Tensor) -> None:
    """Copy whole blocks between places, one move after the other: a place may be written and read again.

    Places 0 to num_blocks - 1 are the pool's blocks, num_blocks + i is host block i. All places are checked
    before anything is copied.

    Args:
        pool: [P, num_blocks, E]: block b consists of P pieces of E elements, pool[:, b].
        host: [num_host_blocks, P, E], not a part of pool; num_host_blocks may be 0.
        moves_from: int32 or int64 [M], places that are read.
        moves_to: like moves_from, places that are written.
    """
    _move_blocks(pool, host, moves_from, moves_to)


def paged_attention(
    out: Tensor,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    scale: float,
    sliding_window: int = 0,
    softcap: float = 0.0,
) -> None:
    """Causal attention of prefill, chunk and decode rows over the paged cache.

    Args:
        out: [T, Hq, D], D a multiple of 8 up to 256.
        q: like out.
        k_cache: as kv_write leaves it; this step's keys are already in it.
        v_cache: likewise.
        block_tables: int32 [R, max_blocks].
        cu_seqlens_q: int32 [R + 1]: request r owns rows cu_seqlens_q[r] to cu_seqlens_q[r + 1] of q.
        seq_lens: int32 [R]: context length with this step's tokens; the rows of q are the last of it.
        scale: multiplies the scores.
        sliding_window: a token sees this many positions up to and including its own; 0: all.
        softcap: scores become softcap * tanh(score / softcap); 0: off.
    """
    _paged_attention(
        out, q, k_cache, v_cache, block_tables, cu_seqlens_q, seq_lens, scale, sliding_window, softcap
    )


def linear(out: Tensor, x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> None:
    """Write x @ weight.T + bias to out, accumulated in float32 in an order that depends on K alone.

    Args:
        out: [T, N], dtype of x or float32.
        x: [T, K], dtype of the weight.
        weight: [N, K]; integers are multiplied exactly, and their scales with the sums.
        bias: [N] or None, dtype of x.
    """
    cols, depth = weight.shape
    _linear(out, x, weight.data, weight.scales, cols, depth, bias)


def embedding(
    out: Tensor, token_ids: Tensor, weight: PackedWeight, part: VocabularyPart | None = None
) -> None:
    """Copy rows: out[t] = weight[token_ids[t]].

    Args:
        out: [T, H], dtype of the activations that the weight multiplies.
        token_ids: int32 or int64 [T].
        weight: [V, H], not in int4; [V', H] if it holds a part of the vocabulary.
        part: which rows the weight holds; tokens of others get zeros. None for all.
    """
    num_rows, hidden = weight.shape
    first, vocab = part or (0, num_rows)
    _embedding(out, token_ids, weight.data, weight.scales, num_rows, hidden, first, vocab)


def apply_penalties(
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
    """Penalise tokens that a request has already seen, in place; cost follows the length of the histories.

    The repetition penalty covers prompt and output: positive logits are divided by it, others multiplied. The
    frequency penalty times the number of occurrences among output tokens, and the presence penalty once, are
    subtracted after it.

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
    _apply_penalties(
        logits, rows, token_ids, history_rows, prompt_lens, total_lens, repetition, frequency, presence
    )


def edit_logits(logits: Tensor, rows: Tensor, cu_edits: Tensor, token_ids: Tensor, values: Tensor) -> None:
    """Add to single logits, in place; -inf forbids a token, whatever else is added to it; a NaN stays one.

    Args:
        logits: float32 [R, V].
        rows: int32 [P], distinct rows of logits to change.
        cu_edits: int32 [P + 1]: row rows[i] has the edits from cu_edits[i] to cu_edits[i + 1].
        token_ids: int32 [N]; one may be repeated within a row if all but one of its values are -inf.
        values: float32 [N].
    """
    _edit_logits(logits, rows, cu_edits, token_ids, values)


def sample(
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
    """Draw one token per row: mask, temperature, min_p, top_k, top_p, noise from (seed, position, token id).

    Among equal logits the lower id comes first. Tokens with logit -inf are never drawn: a row of them alone
    gives token id -2. A row with a NaN, masked or not, gives -1.

    Args:
        out_token_ids: int32 [R].
        logits: float32 [R, V]; what a mask forbids may come to be -inf, the rest is not changed.
        temperature: float32 [R]; 0: the most likely token.
        top_k: int32 [R]; 0 or less: off.
        top_p: float32 [R]; 1: off. The fewest tokens whose mass reaches top_p stay, at least one.
        min_p: float32 [R]; 0: off. Tokens less likely than min_p times the likeliest go.
        seeds: int64 [R], the bits of an unsigned 64-bit seed.
        positions: int32 or int64 [R], position of the token to be drawn.
        masks: int32 [any, ceil(V / 32)], a bit per token that may be drawn, the lowest of a word first; the
            logits of others count as -inf.
        mask_rows: int32 [R], the row of masks for each row of logits; negative: none. Comes with masks.
    """
    _sample(out_token_ids, logits, temperature, top_k, top_p, min_p, seeds, positions, masks, mask_rows)


def top_logprobs(
    out_ids: Tensor, out_logprobs: Tensor, out_ranks: Tensor, logits: Tensor, rows: Tensor, token_ids: Tensor
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
    _top_logprobs(out_ids, out_logprobs, out_ranks, logits, rows, token_ids)


def token_logprobs(out: Tensor, logits: Tensor, rows: Tensor, cu_tokens: Tensor, token_ids: Tensor) -> None:
    """Log-probabilities, by log_softmax of the raw logits, of any number of given tokens per row.

    A token gets the same bits here as from top_logprobs. A row with a NaN gives NaN.

    Args:
        out: float32 [N].
        logits: float32 [R, V].
        rows: int32 [P], rows of logits.
        cu_tokens: int32 [P + 1]: row rows[i] is asked for token_ids[cu_tokens[i]:cu_tokens[i + 1]].
        token_ids: int32 [N].
    """
    _token_logprobs(out, logits, rows, cu_tokens, token_ids)
