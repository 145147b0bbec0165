"""The real scheduler over the real model: prefix cache, preemption and pipelining change no token."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from engine_core.clock import ManualClock
from engine_core.config import SchedulerConfig
from engine_core.engine import EngineCore
from engine_core.executor.inproc import InprocExecutor
from engine_core.ipc.codec import pack_int32, unpack_int32, unpack_int64
from engine_core.ipc.messages import AddRequest, Finished, FinishReason, ModelRunnerOutput, WorkerReady
from engine_core.sampling_params import SamplingParams
from tests.worker.runner.checkpoints import VOCAB, write_tiny_llama
from tests.worker.runner.test_batch_invariance import random_sampling
from worker.config import WorkerConfig
from worker.worker import Worker

FRONTEND = b"f"
NUM_BLOCKS = 24
POISON = 7


@dataclass(slots=True)
class Served:
    """A request and what its frontend heard."""

    prompt: list[int]
    sampling: SamplingParams
    tokens: list[int] = field(default_factory=list)
    logprobs: dict[int, tuple[int, bytes, bytes]] = field(default_factory=dict)
    prompt_logprobs: dict[int, tuple[int, bytes, bytes]] = field(default_factory=dict)
    finished: Finished | None = None

    def again(self) -> Served:
        return Served(self.prompt, self.sampling)

    def heard(self) -> tuple[object, ...]:
        """All that may not depend on the company; of a prompt that fails, earlier chunks may be scored."""
        assert self.finished is not None
        end = (self.finished.reason, self.finished.stop_token_id, self.finished.error_code)
        scores = {} if self.finished.reason is FinishReason.ERROR else self.prompt_logprobs
        return (self.tokens, self.logprobs, scores, end)


class Loop:
    """A busy loop without sockets: two steps in flight, integrity checked after each."""

    def __init__(self, worker: Worker, config: WorkerConfig, ready: WorkerReady) -> None:
        self._executor = InprocExecutor(worker)
        self._executor.init_kv_cache(NUM_BLOCKS)
        self._executor.receive()
        limits = SchedulerConfig(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=24,
            max_model_len=ready.model.max_model_len,
            block_size=config.block_size,
            num_blocks=NUM_BLOCKS,
        )
        self.engine = EngineCore(limits, ready.model, epoch=1, clock=ManualClock())

    def run(self, requests: list[Served], rng: random.Random | None = None) -> None:
        waiting = dict(enumerate(requests))
        while waiting or self.engine.has_requests or self.engine.num_steps_in_flight:
            while waiting and (rng is None or rng.random() < 0.5):
                handle = next(iter(waiting))
                request = waiting.pop(handle)
                self.engine.add(
                    FRONTEND, AddRequest(handle, f"r{handle}", pack_int32(request.prompt), request.sampling)
                )
            while (step := self.engine.plan()) is not None:
                self._executor.submit(step)
            for message in self._executor.receive():
                assert isinstance(message, ModelRunnerOutput)
                self.engine.apply(message)
                self.engine.check_integrity()
            self._deliver(requests)

    def _deliver(self, requests: list[Served]) -> None:
        outputs = self.engine.take_outputs().get(FRONTEND)
        if outputs is None:
            return
        columns = (
            unpack_int64(outputs.handles),
            unpack_int32(outputs.token_indices),
            unpack_int32(outputs.token_ids),
        )
        for handle, index, token in zip(*(column.tolist() for column in columns), strict=True):
            assert len(requests[handle].tokens) == index
            requests[handle].tokens.append(token)
        for entry in outputs.logprobs:
            requests[entry.key].logprobs[entry.token_index] = (entry.rank, entry.token_ids, entry.logprobs)
        for entry in outputs.prompt_logprobs:
            into = requests[entry.key].prompt_logprobs
            assert entry.token_index not in into
            into[entry.token_index] = (entry.rank, entry.token_ids, entry.logprobs)
        for finished in outputs.finished:
            assert requests[finished.handle].finished is None
            requests[finished.handle].finished = finished


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Worker, WorkerConfig, WorkerReady]:
    checkpoint = write_tiny_llama(tmp_path_factory.mktemp("poisoned-engine"), poisoned_token=POISON)
    config = WorkerConfig(
        model=str(checkpoint), num_threads=1, max_num_seqs=5, max_num_batched_tokens=32, block_size=4
    )
    worker = Worker(config)
    return worker, config, worker.load()


def random_requests(rng: random.Random, count: int) -> list[Served]:
    """Prompts share prefixes of whole blocks; some are poisoned, some only want the prompt."""
    stems = [[rng.randrange(8, VOCAB) for _ in range(20)] for _ in range(2)]
    requests = []
    for _ in range(count):
        tail = [rng.randrange(8, VOCAB) for _ in range(rng.randint(1, 20))]
        if rng.random() < 0.15:
            tail[rng.randrange(len(tail))] = POISON
        sampling = random_sampling(rng)
        changes = {
            "logit_bias": {**sampling.logit_bias, POISON: -100.0},
            "max_tokens": rng.choice([0, 1, 12, 30]),
        }
        if changes["max_tokens"] < 3:
            changes["min_tokens"] = 0
        fields = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
        prompt = rng.choice(stems)[: rng.choice([0, 8, 20])] + tail
        requests.append(Served(prompt, SamplingParams(**(fields | changes))))
    return requests


def test_requests_under_the_real_scheduler_equal_themselves_alone(
    poisoned: tuple[Worker, WorkerConfig, WorkerReady],
) -> None:
    num_preempted = num_cached = num_failed = 0
    for seed in range(8):
        rng = random.Random(seed)
        requests = random_requests(rng, 16)
        loop = Loop(*poisoned)
        loop.run(requests, rng)
        stats = loop.engine.stats()
        num_preempted += stats.num_preemptions
        num_cached += stats.prefix_cache_hits
        assert stats.num_free_blocks == NUM_BLOCKS
        for request in requests:
            alone = request.again()
            Loop(*poisoned).run([alone])
            assert request.heard() == alone.heard()
            assert request.finished is not None
            failed = request.finished.reason is FinishReason.ERROR
            assert failed == (POISON in request.prompt)
            num_failed += failed
            if request.sampling.prompt_logprobs is not None and not failed:
                assert sorted(request.prompt_logprobs) == list(range(1, len(request.prompt)))
    assert min(num_preempted, num_cached, num_failed) > 0
