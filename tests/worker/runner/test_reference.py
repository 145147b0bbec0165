"""Greedy tokens and prompt logprobs equal those of transformers on the same checkpoint."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from splitserve.engine_core.ipc.codec import unpack_float32, unpack_int32
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.worker import Worker
from tests.worker.runner.checkpoints import VOCAB
from tests.worker.runner.conftest import NUM_BLOCKS
from tests.worker.runner.driver import Driver, Job


class Reference(NamedTuple):
    """The same checkpoint in transformers."""

    model: torch.nn.Module

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """Logits [T, V] in double."""
        with torch.inference_mode():
            return self.model(torch.tensor([token_ids])).logits[0].double()

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        token_ids = list(prompt)
        for _ in range(count):
            token_ids.append(int(self.logits(token_ids)[-1].argmax()))
        return token_ids[len(prompt) :]


@pytest.fixture(scope="module")
def reference(tiny_llama: Path) -> Reference:
    from transformers import LlamaForCausalLM

    return Reference(LlamaForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval())


def prompts(seed: int, lengths: list[int]) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(length)] for length in lengths]


def test_greedy_tokens_equal_the_reference(
    tiny_worker: tuple[Worker, WorkerConfig], reference: Reference
) -> None:
    worker, config = tiny_worker
    greedy = SequenceSampling(temperature=0.0, seed=0, ignore_eos=True)
    jobs = [Job(prompt, greedy, 24) for prompt in prompts(1, [1, 7, 30, 90])]
    Driver(worker, config, NUM_BLOCKS, random.Random(1)).run(jobs)
    for job in jobs:
        assert job.tokens == reference.greedy(job.prompt, 24)


def test_logprobs_equal_the_reference(tiny_worker: tuple[Worker, WorkerConfig], reference: Reference) -> None:
    worker, config = tiny_worker
    (prompt,) = prompts(2, [11])
    job = Job(prompt, SequenceSampling(seed=3, logprobs=4), 8)
    Driver(worker, config, NUM_BLOCKS).run([job])
    wanted = reference.logits([*prompt, *job.tokens]).log_softmax(-1)
    assert sorted(job.logprobs) == list(range(8))
    for index, (rank, ids, values) in job.logprobs.items():
        row = wanted[len(prompt) + index - 1]
        assert unpack_int32(ids)[0] == job.tokens[index]
        assert rank == 1 + int((row > row[job.tokens[index]]).sum())
        np.testing.assert_allclose(unpack_float32(values), row[unpack_int32(ids).tolist()], atol=2e-5)


@pytest.mark.parametrize("seed", [None, 4])
def test_prompt_logprobs_equal_the_reference_over_chunk_borders(
    seed: int | None, tiny_worker: tuple[Worker, WorkerConfig], reference: Reference
) -> None:
    worker, config = tiny_worker
    jobs = [
        Job(prompt, SequenceSampling(seed=1, prompt_logprobs=k), 3)
        for prompt, k in zip(prompts(3, [1, 2, 9, 75, 130]), [0, 1, 2, 3, 0], strict=True)
    ]
    Driver(worker, config, NUM_BLOCKS, None if seed is None else random.Random(seed)).run(jobs)
    for job in jobs:
        assert sorted(job.prompt_logprobs) == list(range(1, len(job.prompt)))
        wanted = reference.logits(job.prompt).log_softmax(-1)
        for index, (rank, ids, values) in job.prompt_logprobs.items():
            row, token = wanted[index - 1], job.prompt[index]
            top = row.topk(job.sampling.prompt_logprobs or 0).indices.tolist()
            assert unpack_int32(ids).tolist() == [token, *top]
            assert rank == 1 + int((row > row[token]).sum())
            np.testing.assert_allclose(unpack_float32(values), row[[token, *top]], atol=2e-5)


def test_logits_in_small_pieces_give_the_same_tokens(
    tiny_worker: tuple[Worker, WorkerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound on logits held at once is far above what a tiny model needs, so it is lowered here."""
    worker, config = tiny_worker
    sampling = SequenceSampling(seed=5, logprobs=2, prompt_logprobs=1)
    jobs = [Job(prompt, sampling, 6) for prompt in prompts(4, [20, 3, 41, 8, 17])]
    again = [job.again() for job in jobs]
    Driver(worker, config, NUM_BLOCKS).run(jobs)
    monkeypatch.setattr("splitserve.worker.device.cpu.CpuDevice.max_logits_bytes", 3 * 4 * VOCAB)
    worker.init_kv_cache(NUM_BLOCKS)
    try:
        Driver(worker, config, NUM_BLOCKS).run(again)
    finally:
        monkeypatch.undo()
        worker.init_kv_cache(NUM_BLOCKS)
    assert again == jobs
