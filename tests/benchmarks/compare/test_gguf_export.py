"""Names and row orders of GGUF files."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.compare.checkpoint import random_weights
from benchmarks.compare.gguf_export import gguf_name, interleave_heads
from tests.benchmarks.compare.conftest import SMALL


def test_every_weight_has_a_name_of_its_own() -> None:
    names = [gguf_name(name) for name in random_weights(SMALL, 0)]
    assert len(set(names)) == len(names)
    assert {"token_embd.weight", "output_norm.weight", "blk.1.attn_k_norm.weight"} <= set(names)


def test_an_unknown_weight_is_not_given_a_name() -> None:
    with pytest.raises(KeyError):
        gguf_name("model.layers.0.mlp.experts.weight")


def test_partners_of_a_rotation_become_neighbours_within_their_head() -> None:
    rows = np.arange(16, dtype=np.float32)[:, None]
    assert interleave_heads(rows, 2)[:, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
