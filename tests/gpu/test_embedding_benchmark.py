"""The benchmark of embeddings compares like with like: both sides make the same vectors."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import embedding_shapes, gpu_embeddings, gpu_embeddings_peer
from benchmarks.embedding_shapes import SHAPES, Shape
from tests.gpu.conftest import Gpu
from tests.gpu.whole_worker import device_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("has_transformers", [True, False])
def test_both_sides_make_the_same_vectors(
    gpu: Gpu, has_transformers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_transformers:
        pytest.importorskip("transformers")
    else:
        monkeypatch.setattr(gpu_embeddings_peer, "find_spec", lambda name: None)
    monkeypatch.setitem(SHAPES, "tiny", Shape(1, 32, 2, 64))
    # The emulation takes its time.
    monkeypatch.setattr(embedding_shapes, "LONGEST", 40)
    args = argparse.Namespace(sentences=3, step_tokens=[80, 600], peer_batch=[2], rounds=1)
    row = gpu_embeddings.measure("tiny", "float32", device_of(gpu), args)
    assert row.peer == ("transformers" if has_transformers else "torch")
    assert row.least_cosine > 0.99999
    assert min(row.ours_per_s, row.peer_per_s, row.ratio) > 0
