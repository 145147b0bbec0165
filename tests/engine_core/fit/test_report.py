"""What is said of a model that fits, and of one that does not."""

from __future__ import annotations

import msgspec
import pytest

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.fit.report import FitReport
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.ipc.worker_messages import MemoryNeed

GIB = 2**30
MODEL = ModelInfo("/m", "LlamaForCausalLM", "bfloat16", 1000, 32768, [2], num_params=6_000_000_000)
# 128 KiB per token.
NEED = MemoryNeed(MODEL, "cpu", 24 * GIB, 12 * GIB, GIB // 2, 2**21, 4 * GIB, {"int8": 6 * GIB})


def report(need: MemoryNeed = NEED, **settings: object) -> FitReport:
    return FitReport(EngineConfig(max_num_seqs=64, **settings), need)  # type: ignore[arg-type]


def lines(**settings: object) -> str:
    made = report(NEED, **settings)
    assert made.fits
    return "\n".join(made.lines)


def test_what_a_model_takes_and_what_fits_beside_it() -> None:
    text = lines()
    assert text.splitlines() == [
        "/m: LlamaForCausalLM, 6,000 M parameters, bfloat16, on cpu",
        "  free memory          24.0 GiB",
        "  weights              12.0 GiB  with --quantization int8: 6.0 GiB",
        "  activations         512.0 MiB  of a step of 2048 tokens, estimated",
        "  left                 11.5 GiB",
        "  KV cache              4.0 GiB  by default, 32,768 tokens of 128.0 KiB",
        "                       11.5 GiB  94,208 tokens, at most, by --kv-cache-memory-bytes",
        "  longest sequence  32,768 tokens of the model's 32,768",
        "  at once           32 of 1,024 tokens, 8 of 4,096 tokens, 2 of 16,384 tokens, 1 of 32,768 tokens",
        "  it fits           at most 64 sequences at once",
    ]


def test_a_cache_of_a_given_size_is_counted_as_given() -> None:
    assert "by --kv-cache-memory-bytes, 16,384 tokens" in lines(kv_cache_memory_bytes=2 * GIB)
    text = lines(num_blocks=100)
    assert "by --num-blocks, 1,600 tokens" in text
    assert "longest sequence  1,600 tokens of the model's 32,768" in text


def test_a_shorter_context_lets_more_sequences_run_at_once() -> None:
    assert "at once           32 of 1,024 tokens, 16 of 2,048 tokens" in lines(max_model_len=2048)
    with pytest.raises(ConfigError, match="--max-model-len 40000 exceeds"):
        report(max_model_len=40000)


def test_window_groups_are_counted_by_what_rows_hold() -> None:
    model = msgspec.structs.replace(MODEL, group_windows=[1024] * 6)
    # Blocks of 5 layers in place of 34.
    need = msgspec.structs.replace(NEED, model=model, block_bytes=2**21 * 5 // 34)
    text = "\n".join(report(need).lines)
    assert "longest sequence  32,768 tokens of the model's 32,768" in text
    assert "at once           31 of 1,024 tokens, 19 of 4,096 tokens, 9 of 16,384 tokens, 5 of 32,768" in text


def test_ranks_are_named() -> None:
    assert "on cpu, each of 2 workers" in lines(tensor_parallel_size=2)


@pytest.mark.parametrize(
    ("free", "settings", "last"),
    [
        (8 * GIB, {}, "12.5 GiB are needed, 8.0 GiB are free; try --quantization int8"),
        (6 * GIB, {}, "12.5 GiB are needed, 6.0 GiB are free"),
        (24 * GIB, {"kv_cache_memory_bytes": 16 * GIB}, "28.5 GiB are needed, 24.0 GiB are free; try --q"),
    ],
)
def test_what_does_not_fit_is_said_with_what_would(free: int, settings: dict[str, object], last: str) -> None:
    made = report(msgspec.structs.replace(NEED, free_bytes=free), **settings)
    assert not made.fits
    assert made.lines[-1].startswith(f"  it does not fit   {last}")


def test_a_model_without_a_cache_needs_none() -> None:
    text = "\n".join(report(msgspec.structs.replace(NEED, block_bytes=0, available_bytes=0)).lines)
    assert "KV cache              0 bytes  prompts are computed whole" in text
