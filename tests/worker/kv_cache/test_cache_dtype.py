"""What the KV cache holds: the setting decides, or the checkpoint where it is as exact as its own scales."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
import torch

from splitserve.engine_core.checkpoint.quantization.schemes import Quantization
from splitserve.engine_core.errors import ConfigError
from splitserve.worker.kv_cache.cache_dtype import Range, resolve_cache_dtype, settle_cache
from tests.engine_core.checkpoint.test_model_config import read

if TYPE_CHECKING:
    from splitserve.engine_core.checkpoint.config.encoders.encoder_traits import EncoderTraits
    from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
    from splitserve.engine_core.checkpoint.quantization.cache_scheme import CacheCodes


@pytest.mark.parametrize(
    ("requested", "dtype", "expected"),
    [
        ("auto", torch.float32, torch.float32),
        ("auto", torch.bfloat16, torch.bfloat16),
        ("bfloat16", torch.bfloat16, torch.bfloat16),
        ("fp8", torch.bfloat16, torch.uint8),
        ("int8", torch.bfloat16, torch.int8),
    ],
)
def test_the_kv_cache_is_in_the_models_dtype_unless_asked_otherwise(
    requested: str, dtype: torch.dtype, expected: torch.dtype, tmp_path: Path
) -> None:
    assert resolve_cache_dtype(requested, read(tmp_path), dtype) == expected


@pytest.mark.parametrize("requested", ["fp8", "int8", "bfloat16"])
def test_another_kv_cache_needs_bfloat16_activations(requested: str, tmp_path: Path) -> None:
    message = f"--kv-cache-dtype {requested} needs bfloat16 activations, and this model runs in float32"
    with pytest.raises(ConfigError, match=message):
        resolve_cache_dtype(requested, read(tmp_path), torch.float32)


@pytest.mark.parametrize("requested", ["fp8", "int8"])
def test_a_kv_cache_of_codes_is_refused_where_nothing_reads_it(requested: str, tmp_path: Path) -> None:
    config, bfloat16 = read(tmp_path), torch.bfloat16
    encoder = msgspec.structs.replace(config, encoder=cast("EncoderTraits", "any"))
    with pytest.raises(ConfigError, match=f"--kv-cache-dtype {requested} has no use: .* has no KV cache"):
        resolve_cache_dtype(requested, encoder, bfloat16)


def asking(directory: Path, codes: CacheCodes) -> ModelConfig:
    return msgspec.structs.replace(read(directory), quantization=Quantization("fp8", (), (), codes))


@pytest.mark.parametrize(
    ("codes", "scales", "expected"),
    [
        ("fp8", (0.001, 0.06), "fp8"),
        ("fp8", None, "fp8"),
        ("fp8", (1.0, 1.0), "fp8"),
        # E4M3 with scale 1 would cut off keys, or keep fewer bits of values than with the file's scale.
        ("fp8", (0.001, 1.02), "auto"),
        ("fp8", (0.0001, 0.06), "auto"),
        # A scale of each token and head is none of the file's.
        ("int8", (0.0001, 7.0), "int8"),
        ("", (0.001, 0.06), "auto"),
    ],
)
def test_the_checkpoint_says_what_the_cache_holds_where_its_scales_are_not_missed(
    codes: CacheCodes, scales: Range, expected: str, tmp_path: Path
) -> None:
    config = asking(tmp_path, codes)
    assert settle_cache("auto", config, torch.bfloat16, lambda: scales) == expected
    for requested in ("bfloat16", "int8"):
        assert settle_cache(requested, config, torch.bfloat16, lambda: scales) == requested


@pytest.mark.parametrize("codes", ["fp8", "int8"])
def test_a_cache_that_cannot_hold_codes_stays_as_it_is_and_says_why(
    codes: CacheCodes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = asking(tmp_path, codes)
    encoder = msgspec.structs.replace(config, encoder=cast("EncoderTraits", "any"))
    with caplog.at_level("INFO"):
        assert settle_cache("auto", config, torch.float32, lambda: None) == "auto"
        assert settle_cache("auto", config, torch.bfloat16, lambda: None, "nobody reads codes") == "auto"
        assert settle_cache("auto", encoder, torch.bfloat16, lambda: None) == "auto"
    lines = [record.getMessage() for record in caplog.records]
    assert [f"asks={codes}" in line for line in lines] == [True] * 2
    for line, reason in zip(lines, ("runs in float32", "nobody reads codes"), strict=True):
        assert reason in line


def test_fp8_is_refused_where_it_would_cut_off_keys(tmp_path: Path) -> None:
    config = asking(tmp_path, "")
    assert settle_cache("fp8", config, torch.bfloat16, lambda: (0.0001, 1.0)) == "fp8"
    message = r"--kv-cache-dtype fp8: keys or values of this checkpoint reach 897 .* take int8 or bfloat16"
    with pytest.raises(ConfigError, match=message):
        settle_cache("fp8", config, torch.bfloat16, lambda: (0.0001, 2.001))
