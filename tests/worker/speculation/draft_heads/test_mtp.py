"""A layer for multi-token prediction computes what DeepSeek's does, and drafts for its own model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.checkpoint.draft_check import read_draft_config
from splitserve.engine_core.errors import ConfigError, ModelLoadError
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.kv_cache.layout import layer_caches
from splitserve.worker.models.decoder import Decoder
from splitserve.worker.models.draft_heads.mtp import MtpHead
from splitserve.worker.worker import Worker
from tests.checkpoints import CheckpointCache, CheckpointSpec
from tests.worker.runner.test_engine_core import Loop, Served
from tests.worker.speculation.draft_heads.test_eagle3_head import layout
from tests.worker.speculation.free_drafts import make_free

LAYER = "model.layers.2"
SIZE = 48


@pytest.fixture(autouse=True)
def _free_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    make_free(monkeypatch)


@pytest.fixture(scope="module")
def folder(checkpoints: CheckpointCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mtp(checkpoints, tmp_path_factory.mktemp("mtp") / "model")


def write_mtp(checkpoints: CheckpointCache, path: Path) -> Path:
    """The tiny DeepSeek V3, with a layer behind its last that is much like that."""
    source = checkpoints.get(CheckpointSpec("deepseekv3"))
    shutil.copytree(source, path)
    tensors = load_file(source / "model.safetensors")
    for name, tensor in list(tensors.items()):
        if name.startswith("model.layers.1."):
            tensors[name.replace("model.layers.1", LAYER)] = tensor.clone()
    generator = torch.Generator().manual_seed(2)
    tensors[f"{LAYER}.eh_proj.weight"] = torch.randn(SIZE, 2 * SIZE, generator=generator) * 0.1
    for name in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{LAYER}.{name}.weight"] = 1 + 0.1 * torch.randn(SIZE, generator=generator)
    tensors[f"{LAYER}.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    return path


class Reference:
    """The layer as the transformers library computes it, in the place of a third one."""

    def __init__(self, folder: Path) -> None:
        config = DeepseekV3Config.from_pretrained(folder)
        config.num_hidden_layers = 3
        self._model = DeepseekV3ForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32)
        self._weights = load_file(folder / "model.safetensors")
        self._eps = config.rms_norm_eps

    def logits(self, states: torch.Tensor, tokens: torch.Tensor, num_more: int) -> torch.Tensor:
        """Return logits [P + num_more, V] of states [P, H] and the tokens [P + num_more] behind them."""
        model = self._model.model
        for i in range(num_more + 1):
            tokens_now = tokens[: len(states)]
            pairs = torch.cat(
                (self._norm(model.embed_tokens(tokens_now), "enorm"), self._norm(states, "hnorm")), dim=1
            )
            joined = (pairs @ self._weights[f"{LAYER}.eh_proj.weight"].T)[None]
            positions = torch.arange(len(states))[None]
            mask = torch.full((len(states), len(states)), -torch.inf).triu(1)[None, None]
            turned = model.rotary_emb(joined, positions)
            out = model.layers[2](
                joined, attention_mask=mask, position_embeddings=turned, position_ids=positions
            )
            out = out if isinstance(out, torch.Tensor) else out[0]
            normed = self._norm(out[0], "shared_head.norm")
            if i < num_more:
                states = torch.cat((states, normed[-1:]))
        logits: torch.Tensor = self._model.lm_head(normed)
        return logits

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self._weights[f"{LAYER}.{name}.weight"]
        return torch.nn.functional.rms_norm(x, (SIZE,), weight, self._eps)


@torch.inference_mode()
def test_a_layer_computes_what_the_library_does(folder: Path) -> None:
    worker = Worker(WorkerConfig(model=str(folder), num_threads=1, block_size=4, speculate="mtp"))
    worker.load()
    loaded = worker.loaded
    assert loaded is not None
    assert loaded.draft is not None
    model, head = loaded.model, loaded.draft.model
    assert isinstance(model, Decoder)
    assert isinstance(head, MtpHead)
    head.serve(model)
    backend = loaded.placement.backend
    caches = [
        layer_caches(backend.allocate(each.block_shape(4), num_blocks=6)) for each in (loaded, loaded.draft)
    ]
    text = torch.randint(5, 250, (14,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    count, meta = len(text) - 3, layout(0, len(text) - 3)
    backend.begin_step(meta)
    hidden = model.forward(text[:count], meta, caches[0])
    assert hidden is not None
    states = hidden.clone()
    torch.testing.assert_close(head.states(torch.arange(count)), states)
    wanted = Reference(folder).logits(states, text[1:].long(), num_more=2)
    head.put(states)
    stream = head.forward(text[1 : count + 1], meta, caches[1])
    torch.testing.assert_close(head.compute_logits(stream), wanted[:count], atol=2e-4, rtol=1e-3)
    for i in range(count, count + 2):
        head.put(stream[-1:].clone())
        backend.begin_step(layout(i, i + 1))
        stream = head.forward(text[i + 1 : i + 2], layout(i, i + 1), caches[1])
        torch.testing.assert_close(head.compute_logits(stream), wanted[i : i + 1], atol=2e-4, rtol=1e-3)


def test_its_drafts_change_nothing(folder: Path) -> None:
    config = WorkerConfig(
        model=str(folder), num_threads=1, max_num_seqs=3, max_num_batched_tokens=32, block_size=4
    )
    requests = [
        Served(list(range(5 + seed, 30)), SequenceSampling(seed=seed, max_tokens=40, ignore_eos=True))
        for seed in range(3)
    ]
    heard = []
    for speculate, max_drafts in (("none", 0), ("mtp", 4)):
        worker = Worker(msgspec.structs.replace(config, speculate=speculate))
        loop = Loop(worker, config, worker.load(), max_drafts=max_drafts)
        served = [each.again() for each in requests]
        loop.run(served)
        heard.append([each.heard() for each in served])
    assert heard[0] == heard[1]
    (counts,) = loop.engine.stats().drafts
    assert counts.method == "mtp"
    assert sum(counts.counted) > 0


def test_a_model_without_such_a_layer_is_named(checkpoints: CheckpointCache, folder: Path) -> None:
    model = read_model_config(checkpoints.get(CheckpointSpec("deepseekv3")))
    with pytest.raises(ConfigError, match="has no layers that predict tokens farther ahead"):
        read_draft_config("", model, "mtp")


def test_a_tensor_that_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[f"{LAYER}.hnorm.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(folder / "config.json", tmp_path)
    with pytest.raises(ModelLoadError, match=r"missing tensor 'model\.layers\.2\.hnorm\.weight'"):
        Worker(WorkerConfig(model=str(tmp_path), num_threads=1, speculate="mtp")).load()
