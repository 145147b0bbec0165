"""Adapters of a model with latent attention: the tokens of the merged model, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from splitserve.engine_core.ipc.worker_messages import NO_ADAPTER, LoadAdapter
from tests.checkpoints import CheckpointCache, CheckpointSpec
from tests.worker.lora.adapters import merge, write_adapter
from tests.worker.lora.test_tokens import NUM_BLOCKS, jobs_of, load, make_worker
from tests.worker.runner.driver import Driver, Job

ATTENTION = ("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
RANK = 4


def write_deltas(model: Path, folder: Path, targets: tuple[str, ...]) -> Path:
    """An adapter of all layers of these names that are not experts."""
    generator = torch.Generator().manual_seed(4)
    tensors: dict[str, torch.Tensor] = {}
    for key, weight in load_file(model / "model.safetensors").items():
        module = key.removesuffix(".weight")
        if module.rpartition(".")[2] in targets and ".experts." not in module:
            outputs, inputs = weight.shape
            name = f"base_model.model.{module}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, inputs, generator=generator) * inputs**-0.5
            tensors[f"{name}.lora_B.weight"] = torch.randn(outputs, RANK, generator=generator) * 0.2
    return write_adapter(folder, tensors, rank=RANK, alpha=8)


@pytest.mark.parametrize("architecture", ["deepseekv2", "deepseekv3"])
def test_tokens_are_those_of_the_merged_model(
    checkpoints: CheckpointCache, tmp_path: Path, architecture: str
) -> None:
    base = checkpoints.get(CheckpointSpec(architecture))
    adapter = write_deltas(base, tmp_path / "adapter", (*ATTENTION, *MLP))
    worker, config = make_worker(base, num_slots=1, dtype="float32")
    load(worker, 0, adapter)
    jobs = jobs_of(5, [0, NO_ADAPTER, 0, NO_ADAPTER])
    Driver(worker, config, NUM_BLOCKS).run(jobs)
    merged = merge(base, adapter, tmp_path / "merged")
    found = {}
    for slot, model in ((0, merged), (NO_ADAPTER, base)):
        found[slot] = [Job(job.prompt, job.sampling, job.num_outputs) for job in jobs]
        Driver(*make_worker(model, dtype="float32"), NUM_BLOCKS).run(found[slot])
    assert [job.tokens for job in jobs] == [found[job.adapter][i].tokens for i, job in enumerate(jobs)]
    assert found[0][0].tokens != found[NO_ADAPTER][0].tokens
    worker.close()


@pytest.mark.parametrize("target", ["kv_b_proj", "gate"])
def test_what_is_not_multiplied_as_a_linear_layer_is_refused_by_name(
    checkpoints: CheckpointCache, tmp_path: Path, target: str
) -> None:
    base = checkpoints.get(CheckpointSpec("deepseekv3"))
    worker, _config = make_worker(base, num_slots=1, dtype="float32")
    answer = worker.load_adapter(LoadAdapter(1, 0, str(write_deltas(base, tmp_path, (target,)))))
    assert f"{target} is no linear layer of this model that adapters can change" in answer.error
    worker.close()
