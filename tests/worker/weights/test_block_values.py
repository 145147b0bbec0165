"""Blocks of GGUF's types are worth what ggml's own package says, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from benchmarks.stored_formats import BLOCKS as HALVES
from splitserve.engine_core.checkpoint.gguf.tensor_types import BLOCKS, OTHERS, TYPES
from splitserve.worker.weights.formats.block_values import KINDS


def blocks_of(name: str, count: int) -> np.ndarray:
    """Random blocks with finite scales of all sizes."""
    random = np.random.default_rng(3)
    blocks = random.integers(0, 256, (count, BLOCKS[name].block_bytes), dtype=np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = random.integers(100, 150, count)
    for place in HALVES[name]:
        halves = (random.standard_normal(count) * 10.0 ** random.integers(-6, 3, count)).astype(np.float16)
        blocks[:, place : place + 2] = halves[:, None].view(np.uint8)
    return blocks


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_worth_what_the_reference_says(name: str) -> None:
    blocks = blocks_of(name, 500)
    expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType[name])
    values = KINDS[name].values(torch.from_numpy(blocks))
    assert values.shape == (500, BLOCKS[name].block_elements)
    assert np.array_equal(values.numpy().view(np.uint32), expected.view(np.uint32))


def test_all_scales_of_mxfp4_are_powers_of_two() -> None:
    blocks = np.full((255, 17), 0x21, np.uint8)
    blocks[:, 0] = np.arange(255)
    expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType.MXFP4)
    values = KINDS["MXFP4"].values(torch.from_numpy(blocks)).numpy()
    assert np.array_equal(values.view(np.uint32), expected.view(np.uint32))


def test_every_type_has_the_number_and_sizes_of_the_reference() -> None:
    for number, kind in TYPES.items():
        known = gguf.GGMLQuantizationType(number)
        assert (known.name, *gguf.GGML_QUANT_SIZES[known]) == kind
    assert set(KINDS) == set(BLOCKS)
    for number, name in OTHERS.items():
        assert gguf.GGMLQuantizationType(number).name == name
