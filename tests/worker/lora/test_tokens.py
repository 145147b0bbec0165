"""Requests with adapters: the tokens of the merged model, beside any others, in eager and recorded steps."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from splitserve.engine_core.ipc.worker_messages import NO_ADAPTER, LoadAdapter
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.worker import Worker
from tests.worker.lora.adapters import ATTENTION, deltas_of, merge, write_adapter
from tests.worker.runner.checkpoints import VOCAB, write_tiny_llama
from tests.worker.runner.driver import Driver, Job

NUM_BLOCKS = 64


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of different ranks and targets; with rsLoRA, and with ranks and alphas of single layers."""
    folder = tmp_path_factory.mktemp("adapters")
    patterns = {"rank_pattern": {"q_proj": 3, "down_proj": 9}, "alpha_pattern": {"v_proj": 11.0}}
    return [
        write_adapter(folder / "plain", deltas_of(1, 4), rank=4, alpha=8),
        write_adapter(folder / "root", deltas_of(2, 16, ATTENTION), rank=16, alpha=2, use_rslora=True),
        write_adapter(
            folder / "patterns",
            deltas_of(3, 5, ranks={"q_proj": 3, "down_proj": 9}),
            rank=5,
            alpha=4,
            **patterns,
        ),
    ]


def make_worker(
    model: Path, *, num_slots: int = 0, quantization: str = "none", dtype: str = "auto"
) -> tuple[Worker, WorkerConfig]:
    config = WorkerConfig(
        model=str(model),
        dtype=dtype,
        quantization=quantization,
        device="cpu",
        num_threads=1,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        block_size=8,
        lora_dir="/" if num_slots else "",
        max_loras=num_slots or 1,
    )
    worker = Worker(config)
    worker.load()
    worker.init_kv_cache(NUM_BLOCKS)
    return worker, config


def load(worker: Worker, slot: int, path: Path) -> None:
    answer = worker.load_adapter(LoadAdapter(1, slot, str(path)))
    assert not answer.error
    assert len(answer.digest) == 64


def jobs_of(seed: int, slots: list[int]) -> list[Job]:
    """Requests with all logprobs, so that equality is more than that of the best tokens."""
    rng = random.Random(seed)
    sampling = SequenceSampling(temperature=0.0, seed=0, logprobs=3, ignore_eos=True)
    return [
        Job([rng.randrange(5, VOCAB) for _ in range(rng.randrange(2, 30))], sampling, 12, adapter=slot)
        for slot in slots
    ]


def run_alone(worker: Worker, config: WorkerConfig, jobs: list[Job]) -> list[Job]:
    found = [job.again() for job in jobs]
    for job in found:
        Driver(worker, config, NUM_BLOCKS).run([job])
    return found


SLOTS = [0, NO_ADAPTER, 1, 2, 0, NO_ADAPTER, 2, 1, 1, NO_ADAPTER, 0, 2]


def test_tokens_are_those_of_the_merged_models(base: Path, adapters: list[Path], tmp_path: Path) -> None:
    worker, config = make_worker(base, num_slots=4)
    for slot, path in enumerate(adapters):
        load(worker, slot, path)
    jobs = jobs_of(5, SLOTS)
    Driver(worker, config, NUM_BLOCKS, random.Random(7)).run(jobs)
    models = {slot: merge(base, path, tmp_path / str(slot)) for slot, path in enumerate(adapters)}
    for slot, model in (models | {NO_ADAPTER: base}).items():
        own = [job for job in jobs if job.adapter == slot]
        plain = [Job(job.prompt, job.sampling, job.num_outputs) for job in own]
        Driver(*make_worker(model), NUM_BLOCKS).run(plain)
        assert [job.tokens for job in own] == [job.tokens for job in plain], slot
        assert len({tuple(job.tokens) for job in own}) == len(own)
    worker.close()


@pytest.mark.parametrize(
    ("dtype", "quantization"), [("float32", "none"), ("bfloat16", "none"), ("bfloat16", "int8")]
)
def test_every_row_has_the_bits_that_it_has_alone_and_base_rows_those_of_a_plain_worker(
    base: Path, adapters: list[Path], dtype: str, quantization: str
) -> None:
    worker, config = make_worker(base, num_slots=3, dtype=dtype, quantization=quantization)
    for slot, path in enumerate(adapters):
        load(worker, slot, path)
    jobs = jobs_of(6, SLOTS)
    Driver(worker, config, NUM_BLOCKS, random.Random(8)).run(jobs)
    assert jobs == run_alone(worker, config, jobs)
    plain, own_config = make_worker(base, dtype=dtype, quantization=quantization)
    bare = [job for job in jobs if job.adapter == NO_ADAPTER]
    assert bare == run_alone(plain, own_config, bare)
    worker.close()


def test_another_adapter_in_a_slot_takes_effect_in_recorded_steps_too(
    base: Path, adapters: list[Path]
) -> None:
    worker, config = make_worker(base, num_slots=1)
    results = []
    for path in (adapters[0], adapters[1], adapters[0]):
        load(worker, 0, path)
        jobs = jobs_of(9, [0, NO_ADAPTER, 0])
        Driver(worker, config, NUM_BLOCKS).run(jobs)
        results.append(jobs)
    first, other, again = results
    assert first == again
    assert first[1] == other[1]
    assert first[0].tokens != other[0].tokens
    worker.close()


def test_an_adapter_that_cannot_be_read_leaves_its_slot_as_it_was(
    base: Path, adapters: list[Path], tmp_path: Path
) -> None:
    worker, config = make_worker(base, num_slots=1)
    load(worker, 0, adapters[0])
    expected = run_alone(worker, config, jobs_of(9, [0]))
    tensors = deltas_of(1, 4)
    next(iter(tensors.values()))[0, 0] = torch.nan
    wrong = write_adapter(tmp_path / "nan", tensors, rank=4, alpha=8)
    answer = worker.load_adapter(LoadAdapter(2, 0, str(wrong)))
    assert "not finite" in answer.error
    assert answer.number == 2
    assert run_alone(worker, config, jobs_of(9, [0])) == expected
    worker.close()
