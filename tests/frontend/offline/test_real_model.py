"""The LLM class with weights: greedy tokens equal those of transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from splitserve import LLM, SamplingParams
from tests.checkpoints import CheckpointCache, CheckpointSpec

pytestmark = pytest.mark.system

NUM_TOKENS = 24


def test_greedy_tokens_equal_transformers_and_neighbours_change_nothing(checkpoints: CheckpointCache) -> None:
    directory = checkpoints.get(CheckpointSpec("llama"))
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=1)
    prompts = [[7, 8, 9], [20] * 17, [5, 300, 11, 12]]
    with LLM(
        str(directory), dtype="float32", num_threads=1, num_blocks=64, max_num_seqs=4, use_tqdm=False
    ) as llm:
        outputs = llm.generate(prompts, greedy, use_tqdm=False)
        noisy = llm.generate(prompts + [[i, i + 1] for i in range(40)], greedy, use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        expected = theirs.generate(
            torch.tensor([prompt]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None
        )
        assert output.outputs[0].token_ids == expected[0, len(prompt) :].tolist()
    assert [output.outputs for output in noisy[:3]] == [output.outputs for output in outputs]
