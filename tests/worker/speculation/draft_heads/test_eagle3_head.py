"""An EAGLE-3 head computes what its layer says in plain torch, and what cannot draft is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from splitserve.engine_core.errors import ConfigError, ModelLoadError
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.config import WorkerConfig
from splitserve.worker.kv_cache.layout import layer_caches
from splitserve.worker.models.decoder import Decoder
from splitserve.worker.models.draft_heads.eagle3 import Eagle3Head
from splitserve.worker.models.loaded_model import LoadedModel
from splitserve.worker.worker import Worker
from tests.worker.runner.checkpoints import HIDDEN, VOCAB, write_tiny_llama
from tests.worker.speculation.draft_heads.head_checkpoint import (
    CONFIG,
    Reference,
    head_weights,
    token_ids,
    write_head,
)

TEXT = torch.randint(8, VOCAB, (21,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
BLOCK_SIZE = 4


def load(model: Path, head: Path) -> LoadedModel:
    config = WorkerConfig(
        model=str(model), num_threads=1, block_size=BLOCK_SIZE, speculate="eagle", speculative_model=str(head)
    )
    worker = Worker(config)
    worker.load()
    assert worker.loaded is not None
    return worker.loaded


def layout(start: int, end: int) -> AttentionMetadata:
    positions = torch.arange(start, end, dtype=torch.int32)
    count = -(-end // BLOCK_SIZE)
    return AttentionMetadata(
        positions=positions,
        slot_mapping=positions,
        block_tables=torch.arange(count, dtype=torch.int32)[None],
        cu_seqlens_q=torch.tensor([0, end - start], dtype=torch.int32),
        seq_lens=torch.tensor([end], dtype=torch.int32),
    )


def with_other_names() -> dict[str, torch.Tensor]:
    """As vLLM names the layer; all of the vocabulary, an embedding and a bias of its own."""
    config: dict[str, Any] = CONFIG | {"draft_vocab_size": VOCAB, "eagle_aux_hidden_state_layer_ids": [1]}
    weights = head_weights(config, layer="layers.0")
    del weights["d2t"], weights["t2d"]
    generator = torch.Generator().manual_seed(9)
    weights["embed_tokens.weight"] = torch.randn(VOCAB, HIDDEN, generator=generator)
    weights["fc.bias"] = torch.randn(HIDDEN, generator=generator)
    return weights


@pytest.mark.parametrize("is_other", [False, True], ids=["eagle", "vllm"])
@torch.inference_mode()
def test_a_head_computes_what_its_layer_says(is_other: bool, tmp_path: Path) -> None:
    weights = with_other_names() if is_other else head_weights()
    changes: dict[str, Any] = {}
    if is_other:
        changes = {
            "draft_vocab_size": None,
            "eagle_aux_hidden_state_layer_ids": None,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0]},
            "norm_before_residual": True,
        }
    folder = write_head(tmp_path / "head", weights, **changes)
    loaded = load(write_tiny_llama(tmp_path / "model"), folder)
    model, draft = loaded.model, loaded.draft
    assert draft is not None
    head = draft.model
    assert isinstance(model, Decoder)
    assert isinstance(head, Eagle3Head)
    assert model.taps is not None
    assert model.taps.layers == ((1,) if is_other else (1, 2))
    head.serve(model)
    backend = loaded.placement.backend
    caches = [
        layer_caches(backend.allocate(each.block_shape(BLOCK_SIZE), num_blocks=6)) for each in (loaded, draft)
    ]
    # All states are handed out, also of tokens whose logits nobody wants.
    count, meta = len(TEXT) - 3, layout(0, len(TEXT) - 3)
    backend.begin_step(meta)
    hidden = model.forward(TEXT[:count], meta, caches[0], torch.tensor([count - 1]))
    assert hidden is not None
    assert hidden.shape == (1, HIDDEN)
    states = model.taps.states(torch.arange(count))
    embedding = model.embedding_weight.weight
    reference = Reference(folder, torch.stack([row for row in _rows(model, embedding)]))
    wanted = reference.logits(states, TEXT[1:], num_more=2)
    head.put(head.states(torch.arange(count)))
    stream = head.forward(TEXT[1 : count + 1], meta, caches[1])
    logits = head.compute_logits(stream)
    assert logits is not None
    known = torch.arange(VOCAB) if is_other else token_ids()
    torch.testing.assert_close(logits[:, known], wanted[:count], atol=2e-4, rtol=1e-4)
    unknown = torch.isin(torch.arange(VOCAB), known, invert=True)
    assert (logits[:, unknown] == -torch.inf).all()
    for i in range(count, count + 2):
        head.put(stream[-1:].clone())
        backend.begin_step(layout(i, i + 1))
        stream = head.forward(TEXT[i + 1 : i + 2], layout(i, i + 1), caches[1])
        logits = head.compute_logits(stream)
        assert logits is not None
        torch.testing.assert_close(logits[0, known], wanted[i], atol=2e-4, rtol=1e-4)


def _rows(model: Decoder, embedding: object) -> torch.Tensor:
    return model._embedding(torch.arange(VOCAB, dtype=torch.int32)).clone()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("fc.weight", "head/model.safetensors: missing tensor 'fc.weight'"),
        ("midlayer.mlp.up_proj.weight", r"missing tensor 'midlayer\.mlp\.up_proj\.weight'"),
        ("lm_head.weight", r"missing tensor 'lm_head\.weight'"),
        ("d2t", "missing tensor 'd2t', which says which 200 of the 320 tokens the head knows"),
    ],
)
def test_a_tensor_that_is_missing_is_named_before_the_model_takes_memory(
    missing: str, words: str, tmp_path: Path
) -> None:
    weights = head_weights()
    del weights[missing]
    model, head = write_tiny_llama(tmp_path / "model"), write_head(tmp_path / "head", weights)
    # It is not even read.
    (model / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=words):
        load(model, head)


def test_a_shape_that_is_wrong_is_named(tmp_path: Path) -> None:
    weights = head_weights()
    weights["fc.weight"] = weights["fc.weight"][:, :HIDDEN].contiguous()
    with pytest.raises(ModelLoadError, match=r"fc\.weight.*\[64, 64\]"):
        load(write_tiny_llama(tmp_path / "model"), write_head(tmp_path / "head", weights))


def test_another_attention_backend_has_no_heads(tmp_path: Path) -> None:
    config = WorkerConfig(
        model=str(write_tiny_llama(tmp_path / "model")),
        num_threads=1,
        attention_backend="torch",
        speculate="eagle",
        speculative_model=str(write_head(tmp_path / "head")),
    )
    with pytest.raises(ConfigError, match="--speculate works with the server's own kernels"):
        Worker(config).load()
