"""Wrong arguments raise an exception that names them, and nothing is written."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from splitserve.worker._native import load_library
from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.packed_weight import PackedWeight


def fp32(*shape: int) -> Tensor:
    return torch.zeros(shape)


def bf16(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def packed(matrix: Tensor) -> PackedWeight:
    return PackedWeight.of(matrix)


def claiming(rows: int, columns: int) -> PackedWeight:
    """A weight of one panel and four steps that says it is larger."""
    weight = packed(fp32(3, 4))
    weight.shape = (rows, columns)
    return weight


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def attend(**changes: Any) -> None:
    arguments: dict[str, Any] = {
        "out": fp32(3, 4, 16),
        "q": fp32(3, 4, 16),
        "k_cache": fp32(5, 2, 8, 16),
        "v_cache": fp32(5, 2, 8, 16),
        "block_tables": torch.tensor([[0, 1], [2, 3]], dtype=torch.int32),
        "cu_seqlens_q": int32(0, 2, 3),
        "seq_lens": int32(9, 1),
        "scale": 0.25,
    }
    ops.paged_attention(**(arguments | changes))


def sample_with(**changes: Tensor) -> None:
    arguments = {
        "out_token_ids": int32(0, 0),
        "logits": fp32(2, 9),
        "temperature": fp32(2),
        "top_k": int32(0, 0),
        "top_p": fp32(2),
        "min_p": fp32(2),
        "seeds": torch.zeros(2, dtype=torch.int64),
        "positions": torch.zeros(2, dtype=torch.int64),
    }
    ops.sampling.sample(**(arguments | changes))


def turn(**changes: Tensor) -> None:
    arguments: dict[str, Any] = {
        "q": fp32(2, 3, 8),
        "k": fp32(2, 2, 8),
        "v": fp32(2, 2, 8),
        "positions": int32(0, 1),
        "cos_sin": fp32(4, 8),
        "k_cache": fp32(1, 2, 4, 8),
        "v_cache": fp32(1, 2, 4, 8),
        "slot_mapping": int32(0, 1),
    }
    ops.rotary_kv_write(**(arguments | changes))


VALUE_ERRORS: list[tuple[str, Callable[[], None]]] = [
    ("x: expected 2 dim", lambda: ops.rms_norm(fp32(4), fp32(4), fp32(4), 1e-6)),
    ("out: expected size 3", lambda: ops.rms_norm(fp32(2, 4), fp32(3, 4), fp32(4), 1e-6)),
    ("weight: expected size 4", lambda: ops.rms_norm(fp32(3, 4), fp32(3, 4), fp32(5), 1e-6)),
    ("x: the last dim", lambda: ops.rms_norm(fp32(3, 4), fp32(4, 3).T, fp32(4), 1e-6)),
    (
        "residual: expected size",
        lambda: ops.fused_add_rms_norm(fp32(3, 4), fp32(3, 4), fp32(3, 5), fp32(4), 0),
    ),
    ("bias: expected 1 dim", lambda: ops.layer_norm(fp32(3, 4), fp32(3, 4), fp32(4), fp32(1, 4), 0)),
    ("x: expected an even", lambda: ops.silu_and_mul(fp32(3, 2), fp32(3, 5))),
    ("out: expected size 2", lambda: ops.silu_and_mul(fp32(3, 4), fp32(3, 4))),
    ("x: expected an even", lambda: ops.gelu_and_mul(fp32(3, 2), fp32(3, 5))),
    ("y: expected size 3", lambda: ops.add(fp32(3, 4), fp32(3, 4), fp32(4, 4))),
    ("factor: must be positive", lambda: ops.scale(fp32(3, 4), fp32(3, 4), 0.0)),
    ("cap: must be positive", lambda: ops.soft_cap(fp32(3, 4), fp32(3, 4), -1.0)),
    ("x: expected size 5", lambda: ops.linear(fp32(2, 3), fp32(2, 4), packed(fp32(3, 5)))),
    ("x: expected size 3", lambda: ops.linear(bf16(2, 3), bf16(2, 4), packed(bf16(3, 3)))),
    ("out: expected size 3", lambda: ops.linear(fp32(2, 4), fp32(2, 4), packed(fp32(3, 4)))),
    ("bias: expected size 3", lambda: ops.linear(fp32(2, 3), fp32(2, 4), packed(fp32(3, 4)), fp32(2))),
    ("packed: expected size 2 in dimension 0", lambda: ops.linear(fp32(1, 33), fp32(1, 4), claiming(33, 4))),
    ("packed: expected size 5 in dimension 1", lambda: ops.linear(fp32(1, 3), fp32(1, 5), claiming(3, 5))),
    ("source: its rows do not fit a weight of 3 from row 2", lambda: packed(fp32(3, 4)).fill(fp32(2, 4), 2)),
    ("source: its rows do not fit", lambda: packed(fp32(3, 4)).fill(fp32(1, 4), -1)),
    ("source: its columns do not fit a weight of 4 from", lambda: packed(fp32(3, 4)).fill(fp32(1, 4), 0, 1)),
    ("source: expected 2 dimensions", lambda: packed(fp32(3, 4)).fill(fp32(4))),
    ("cos_sin: rot_dim", lambda: turn(cos_sin=fp32(4, 3))),
    ("k: head size 8 is smaller than rot_dim 10", lambda: turn(cos_sin=fp32(4, 10))),
    ("q: expected size 8 in dimension 2", lambda: turn(q=fp32(2, 3, 6))),
    ("q: expected size 2 in dimension 0", lambda: turn(q=fp32(1, 3, 8))),
    ("v: expected size 2 in dimension 1", lambda: turn(v=fp32(2, 1, 8))),
    ("positions: expected size 2", lambda: turn(positions=int32(0))),
    ("q_norm: expected size 8", lambda: turn(q_norm=fp32(4))),
    ("k_norm: expected 1 dim", lambda: turn(k_norm=fp32(1, 8))),
    (
        "slot_mapping: expected size",
        lambda: ops.kv_write(fp32(2, 2, 8), fp32(2, 2, 8), fp32(1, 2, 4, 8), fp32(1, 2, 4, 8), int32(0)),
    ),
    (
        "k_cache: block size must be a multiple of 2, got 5",
        lambda: attend(k_cache=bf16(5, 2, 5, 16), q=bf16(3, 4, 16), out=bf16(3, 4, 16)),
    ),
    (
        "v_cache: the last two dimensions must be contiguous",
        lambda: attend(v_cache=fp32(5, 2, 8, 32)[..., :16]),
    ),
    ("k_cache: block size must be a multiple", lambda: attend(k_cache=fp32(5, 2, 0, 16))),
    (
        "k_cache: head size must be a multiple of 2, got 7",
        lambda: ops.kv_write(bf16(1, 2, 7), bf16(1, 2, 7), bf16(1, 2, 4, 7), bf16(1, 2, 4, 7), int32(0)),
    ),
    (
        "v_cache: expected size",
        lambda: ops.kv_write(fp32(1, 2, 8), fp32(1, 2, 8), fp32(1, 2, 4, 8), fp32(1, 2, 4, 9), int32(0)),
    ),
    ("q: head size", lambda: attend(q=fp32(3, 4, 12), out=fp32(3, 4, 12))),
    ("q: 3 heads", lambda: attend(q=fp32(3, 3, 16), out=fp32(3, 3, 16))),
    ("v_cache: expected size", lambda: attend(v_cache=fp32(4, 2, 8, 16))),
    ("cu_seqlens_q: must run", lambda: attend(cu_seqlens_q=int32(0, 2, 2))),
    ("cu_seqlens_q: decreases", lambda: attend(cu_seqlens_q=int32(0, 4, 3), seq_lens=int32(9, 9))),
    ("seq_lens: request 0", lambda: attend(seq_lens=int32(1, 1))),
    ("block_tables: request 0 needs 3", lambda: attend(seq_lens=int32(17, 1))),
    (
        "block_tables: request 1 names block 5 of 5",
        lambda: attend(block_tables=torch.tensor([[0, 1], [5, 3]], dtype=torch.int32)),
    ),
    ("scale", lambda: attend(scale=0.0)),
    ("softcap", lambda: attend(softcap=-1.0)),
    ("sinks", lambda: attend(sinks=fp32(3))),
    ("sliding_window", lambda: attend(sliding_window=-1)),
    ("top_p: expected size 2", lambda: sample_with(top_p=fp32(3))),
    ("logits: unsupported", lambda: sample_with(logits=fp32(2, 0))),
    (
        "rows: 2",
        lambda: ops.sampling.top_logprobs(
            int32(0)[None], fp32(1, 1), int32(0), fp32(2, 4), int32(2), int32(0)
        ),
    ),
    (
        "token_ids: 4",
        lambda: ops.sampling.top_logprobs(
            int32(0)[None], fp32(1, 1), int32(0), fp32(2, 4), int32(0), int32(4)
        ),
    ),
    ("rows: 2", lambda: ops.sampling.token_logprobs(fp32(1), fp32(2, 4), int32(2), int32(0, 1), int32(0))),
    (
        "token_ids: 4",
        lambda: ops.sampling.token_logprobs(fp32(1), fp32(2, 4), int32(0), int32(0, 1), int32(4)),
    ),
    (
        "token_ids: -1",
        lambda: ops.sampling.token_logprobs(fp32(1), fp32(2, 4), int32(0), int32(0, 1), int32(-1)),
    ),
    (
        "cu_tokens: must begin",
        lambda: ops.sampling.token_logprobs(fp32(1), fp32(2, 4), int32(0), int32(0, 2), int32(0)),
    ),
    (
        "cu_tokens: must not",
        lambda: ops.sampling.token_logprobs(fp32(1), fp32(2, 4), int32(0, 1), int32(0, 2, 1), int32(0)),
    ),
    (
        "out: expected size",
        lambda: ops.sampling.token_logprobs(fp32(2), fp32(2, 4), int32(0), int32(0, 1), int32(0)),
    ),
    ("num", lambda: ops.set_num_threads(0)),
    ("name", lambda: ops.set_isa("avx3")),
]

TYPE_ERRORS: list[tuple[str, Callable[[], None]]] = [
    ("x: unsupported dtype float16", lambda: ops.rms_norm(fp32(3, 4), fp32(3, 4).half(), fp32(4), 1e-6)),
    ("weight: dtype differs", lambda: ops.rms_norm(bf16(3, 4), bf16(3, 4), fp32(4), 1e-6)),
    ("x: dtype differs", lambda: ops.linear(fp32(2, 3), fp32(2, 4), packed(bf16(3, 4)))),
    ("out: expected the dtype", lambda: ops.linear(bf16(2, 3), fp32(2, 4), packed(fp32(3, 4)))),
    ("cos_sin: unsupported", lambda: turn(cos_sin=bf16(4, 8))),
    ("positions: unsupported", lambda: turn(positions=fp32(2))),
    ("q: dtype differs", lambda: turn(q=bf16(2, 3, 8))),
    ("q_norm: dtype differs", lambda: turn(q_norm=bf16(8))),
    ("token_ids: unsupported", lambda: ops.embedding(fp32(1, 4), fp32(1), packed(fp32(5, 4)))),
    ("block_tables: unsupported", lambda: attend(block_tables=torch.zeros(2, 2, dtype=torch.int64))),
    ("logits: unsupported", lambda: sample_with(logits=bf16(2, 9))),
    ("seeds: unsupported", lambda: sample_with(seeds=int32(0, 0))),
]


@pytest.mark.parametrize(("message", "call"), VALUE_ERRORS, ids=[message for message, _ in VALUE_ERRORS])
def test_wrong_shapes_and_values(message: str, call: Callable[[], None]) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("message", "call"), TYPE_ERRORS, ids=[message for message, _ in TYPE_ERRORS])
def test_wrong_dtypes(message: str, call: Callable[[], None]) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_what_is_no_tensor_is_told_with_its_place() -> None:
    with pytest.raises(TypeError, match=r"rms_norm: expected DLTensor\* as argument 1, got None"):
        ops.rms_norm(None, fp32(3, 4), fp32(4), 1e-6)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"rms_norm: expected float as argument 4, got ffi\.SmallStr"):
        ops.rms_norm(fp32(3, 4), fp32(3, 4), fp32(4), "1e-6")  # type: ignore[arg-type]


def test_another_number_of_arguments_is_told() -> None:
    library = load_library("splitserve_cpu")
    with pytest.raises(TypeError, match="set_num_threads: arguments: expected 1, got 2"):
        library.set_num_threads(1, 2)
    with pytest.raises(TypeError, match="suffix_drafter: arguments: expected 6, got 0"):
        library.suffix_drafter()


@pytest.mark.parametrize("tokens", [0, 1])
def test_empty_batches_are_fine(tokens: int) -> None:
    normed, multiplied, gated, looked_up = (torch.ones(tokens, size) for size in (4, 3, 2, 4))
    attended = torch.ones(tokens, 4, 16)
    ops.rms_norm(normed, fp32(tokens, 4), fp32(4), 1e-6)
    ops.linear(multiplied, fp32(tokens, 4), packed(fp32(3, 4)))
    ops.silu_and_mul(gated, fp32(tokens, 4))
    ops.embedding(looked_up, torch.zeros(tokens, dtype=torch.int32), packed(fp32(5, 4)))
    attend(
        q=fp32(tokens, 4, 16),
        out=attended,
        cu_seqlens_q=int32(0, 0, tokens),
        seq_lens=int32(9, tokens),
    )
    # Of inputs that are all 0.
    assert not any(out.any() for out in (normed, multiplied, gated, looked_up, attended))
