"""Models with latents: what their cache takes, where they run, and which of their tensors are left out."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from splitserve.engine_core.checkpoint.config.architectures import read_model_config
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.codec import unpack_float32
from splitserve.worker.config import WorkerConfig
from splitserve.worker.worker import Worker
from tests.checkpoints import CheckpointCache, CheckpointSpec
from tests.worker.kv_cache.test_window_groups import serve
from tests.worker.models.driver import Driver

PROMPT = [5, 99, 7, 200, 31]


def test_a_block_holds_one_latent_per_token_and_layer(checkpoints: CheckpointCache) -> None:
    path = checkpoints.get(CheckpointSpec("deepseekv3"))
    ready = Worker(WorkerConfig(model=str(path), block_size=16)).load(lambda loaded, total: None)
    # Of two layers; with keys and values of 6 heads it would be 2 * 6 * (48 + 24) elements.
    assert ready.block_bytes == 2 * (64 + 32) * 16 * 4


def test_latents_are_kept_in_codes_if_asked_for(checkpoints: CheckpointCache) -> None:
    """What they compute is checked in tests/worker/ops/test_coded_latents.py."""
    sizes, logprobs = {}, {}
    for name in ("auto", "int8", "fp8"):
        served = serve(checkpoints, 60, CheckpointSpec("deepseekv3"), dtype="bfloat16", kv_cache_dtype=name)
        sizes[name] = served.ready.block_bytes
        served.add(list(range(20, 85)), 1, temperature=0.0)
        served.play()
        (entry,) = served.logprobs.values()
        logprobs[name] = unpack_float32(entry)[0]
    assert sizes == {"auto": 2 * 96 * 4 * 2, "fp8": 2 * 96 * 4, "int8": 2 * 100 * 4}
    for name, most in (("int8", 0.2), ("fp8", 0.3)):
        assert 0 < abs(logprobs[name] - logprobs["auto"]) < most


def test_other_backends_are_refused_by_name(checkpoints: CheckpointCache) -> None:
    path = checkpoints.get(CheckpointSpec("deepseekv3"))
    worker = Worker(WorkerConfig(model=str(path), attention_backend="torch"))
    with pytest.raises(ConfigError, match="torch: latent attention is computed by the backends cpu"):
        worker.load(lambda loaded, total: None)


def test_layers_that_predict_farther_ahead_are_left_out_and_named(
    checkpoints: CheckpointCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = checkpoints.get(CheckpointSpec("deepseekv3"))
    path = tmp_path / "predicting"
    shutil.copytree(source, path)
    tensors = load_file(source / "model.safetensors")
    for name, tensor in list(tensors.items()):
        if name.startswith("model.layers.1."):
            tensors[name.replace("layers.1.", "layers.2.")] = tensor.clone()
    tensors["model.layers.2.eh_proj.weight"] = torch.zeros(48, 96)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config |= {"num_nextn_predict_layers": 1, "model_type": "kimi_k2"}
    (path / "config.json").write_text(json.dumps(config))
    caplog.set_level(logging.INFO)
    assert Driver(path).greedy(PROMPT, 8) == Driver(source).greedy(PROMPT, 8)
    assert "prediction_layers_ignored" in caplog.text
    assert "tensors_ignored" not in caplog.text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"num_hidden_layers": 6, "first_k_dense_replace": 1, "moe_layer_freq": 2}, [0, 0, 1, 0, 1, 0]),
        ({"num_hidden_layers": 3, "first_k_dense_replace": 0}, [1, 1, 1]),
    ],
)
def test_which_layers_have_experts(
    change: dict[str, int], expected: list[int], checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    config = json.loads((checkpoints.get(CheckpointSpec("deepseekv3")) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    experts = read_model_config(tmp_path).experts
    assert experts is not None
    assert list(map(int, experts.is_sparse)) == expected
