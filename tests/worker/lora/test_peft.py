"""Adapters that the peft library saved give the tokens that it gives."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.worker.lora.adapters import ATTENTION, MLP
from tests.worker.lora.test_tokens import NUM_BLOCKS, load, make_worker
from tests.worker.runner.checkpoints import VOCAB, write_tiny_llama
from tests.worker.runner.driver import Driver, Job

peft = pytest.importorskip("peft")

CONFIGS: dict[str, dict[str, object]] = {
    "all": {"r": 8, "lora_alpha": 16, "target_modules": [*ATTENTION, *MLP]},
    "root": {"r": 16, "lora_alpha": 4, "use_rslora": True, "target_modules": ["q_proj", "v_proj"]},
    "patterns": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": "all-linear",
        "rank_pattern": {"q_proj": 2, "1.mlp.down_proj": 7},
        "alpha_pattern": {"o_proj": 3},
    },
}


# What peft does with other libraries is not ours.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_tokens_equal_those_of_peft(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    base = write_tiny_llama(tmp_path / "tiny")
    worker, config = make_worker(base, num_slots=len(CONFIGS))
    rng = random.Random(2)
    sampling = SequenceSampling(temperature=0.0, seed=0, ignore_eos=True)
    prompts = [[rng.randrange(5, VOCAB) for _ in range(count)] for count in (3, 17, 40)]
    jobs, expected = [], []
    for slot, (name, fields) in enumerate(CONFIGS.items()):
        model = AutoModelForCausalLM.from_pretrained(base)
        tuned = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **fields))
        generator = torch.Generator().manual_seed(slot)
        for parameter_name, parameter in tuned.named_parameters():
            if "lora_B" in parameter_name:
                parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4
        tuned.save_pretrained(tmp_path / name)
        load(worker, slot, tmp_path / name)
        for prompt in prompts:
            jobs.append(Job(prompt, sampling, 12, slot))
            tokens = [*prompt]
            for _ in range(12):
                with torch.inference_mode():
                    logits = tuned(input_ids=torch.tensor([tokens])).logits
                tokens.append(int(logits[0, -1].argmax()))
            expected.append(tokens[len(prompt) :])
    Driver(worker, config, NUM_BLOCKS, random.Random(1)).run(jobs)
    assert [job.tokens for job in jobs] == expected
    worker.close()
