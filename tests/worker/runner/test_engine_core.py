"""The real scheduler over the real model: company, chunks, preemption, cache and pipelining change no bit."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.executor.inproc import InprocExecutor
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32, unpack_int64
from splitserve.engine_core.ipc.messages import AddRequest, Finished, FinishReason
from splitserve.engine_core.ipc.worker_messages import (
    AdapterLoaded,
    GrammarCompiled,
    ModelRunnerOutput,
    WorkerReady,
)
from splitserve.engine_core.sequence_sampling import RepetitionDetection, SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.worker import Worker
from tests.worker.runner.checkpoints import EOS, VOCAB, write_tiny_llama
from tests.worker.runner.test_batch_invariance import random_sampling

FRONTEND = b"f"
NUM_BLOCKS = 24
POISON = 7


@dataclass(slots=True)
class Served:
    """A request and what its frontend heard."""

    prompt: list[int]
    sampling: SequenceSampling
    tokens: list[int] = field(default_factory=list)
    logprobs: dict[int, tuple[int, bytes, bytes]] = field(default_factory=dict)
    prompt_logprobs: dict[int, tuple[int, bytes, bytes]] = field(default_factory=dict)
    finished: Finished | None = None
    predicted: list[int] = field(default_factory=list)
    tenant: str = ""
    cache_salt: str = ""
    adapter: str = ""

    def again(self) -> Served:
        return Served(self.prompt, self.sampling, adapter=self.adapter)

    def heard(self) -> tuple[object, ...]:
        """All that may not depend on the company; of a prompt that fails, earlier chunks may be scored."""
        assert self.finished is not None
        end = (self.finished.reason, self.finished.stop_token_id, self.finished.error_code)
        scores = {} if self.finished.reason is FinishReason.ERROR else self.prompt_logprobs
        return (self.tokens, self.logprobs, scores, end)


class Loop:
    """A busy loop without sockets: `depth` steps in flight, integrity checked after each.

    Of adapters it knows those that the configuration names.
    """

    def __init__(
        self, worker: Worker, config: WorkerConfig, ready: WorkerReady, depth: int = 2, max_drafts: int = 0
    ) -> None:
        self._depth = depth
        self._executor = InprocExecutor(worker)
        self._executor.init_kv_cache(NUM_BLOCKS)
        self._executor.receive()
        limits = SchedulerConfig(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=24,
            max_model_len=ready.model.max_model_len,
            block_size=config.block_size,
            num_blocks=NUM_BLOCKS,
            num_stages=config.pipeline_parallel_size,
            num_speculative_tokens=max_drafts,
            drafts_fill_blocks=config.speculation is not None and bool(config.speculation.model_method),
            num_adapter_slots=config.num_adapter_slots,
            adapters=dict(each.split("=") for each in config.lora),
        )
        self.engine = EngineCore(limits, ready.model, epoch=1, clock=ManualClock())

    def run(self, requests: list[Served], rng: random.Random | None = None) -> None:
        waiting = dict(enumerate(requests))
        while waiting or self.engine.has_requests or self.engine.num_steps_in_flight:
            while waiting and (rng is None or rng.random() < 0.5):
                handle = next(iter(waiting))
                request = waiting.pop(handle)
                self.engine.add(
                    FRONTEND,
                    AddRequest(
                        handle,
                        f"r{handle}",
                        pack_int32(request.prompt),
                        request.sampling,
                        tenant=request.tenant,
                        cache_salt=request.cache_salt,
                        adapter=request.adapter,
                        predicted_token_ids=pack_int32(request.predicted),
                    ),
                )
            for grammar in self.engine.grammars.take_unsent():
                self._executor.compile(grammar)
            while self.engine.num_steps_in_flight < self._depth and (step := self.engine.plan()) is not None:
                self._executor.submit(step)
            for adapter in self.engine.take_adapters():
                self._executor.load_adapter(adapter)
            for message in self._executor.receive():
                if isinstance(message, GrammarCompiled):
                    self.engine.compiled(message)
                    continue
                if isinstance(message, AdapterLoaded):
                    assert not message.error
                    self.engine.adapter_loaded(message)
                    continue
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


Loaded = tuple[Worker, WorkerConfig, WorkerReady]


def start_poisoned(folder: Path, dtype: torch.dtype) -> Loaded:
    checkpoint = write_tiny_llama(folder, dtype=dtype, poisoned_token=POISON)
    config = WorkerConfig(
        model=str(checkpoint), num_threads=1, max_num_seqs=5, max_num_batched_tokens=32, block_size=4
    )
    worker = Worker(config)
    return worker, config, worker.load()


@pytest.fixture(scope="module")
def fp32(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return start_poisoned(tmp_path_factory.mktemp("poisoned-fp32"), torch.float32)


@pytest.fixture(scope="module")
def bf16(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return start_poisoned(tmp_path_factory.mktemp("poisoned-bf16"), torch.bfloat16)


def random_requests(rng: random.Random, count: int) -> list[Served]:
    """Prompts share prefixes of whole blocks; some are poisoned, some only want the prompt."""
    stems = [[rng.randrange(8, VOCAB) for _ in range(20)] for _ in range(2)]
    requests = []
    for _ in range(count):
        tail = [rng.randrange(8, VOCAB) for _ in range(rng.randint(1, 20))]
        if rng.random() < 0.15:
            tail[rng.randrange(len(tail))] = POISON
        sampling = random_sampling(rng)
        changes: dict[str, Any] = {
            "logit_bias": {**sampling.logit_bias, POISON: -100.0},
            "max_tokens": rng.choice([0, 1, 12, 30]),
            "repetition_detection": rng.choice([None, RepetitionDetection(4), RepetitionDetection(9, 2, 3)]),
        }
        if sampling.allowed_token_ids is not None:
            # Sometimes so few that outputs go round in loops; the poison would fail more than its prompts.
            allowed = [token_id for token_id in sampling.allowed_token_ids if token_id != POISON]
            changes["allowed_token_ids"] = tuple(allowed[: rng.choice([3, 60])])
        if changes["max_tokens"] < 3:
            changes["min_tokens"] = 0
        fields = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
        prompt = rng.choice(stems)[: rng.choice([0, 8, 20])] + tail
        requests.append(Served(prompt, SequenceSampling(**(fields | changes))))
    return requests


@pytest.mark.parametrize("depth", [1, 2], ids=["one-step", "two-steps"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_requests_under_the_real_scheduler_equal_themselves_alone(
    dtype: str, depth: int, request: pytest.FixtureRequest
) -> None:
    loaded: Loaded = request.getfixturevalue(dtype)
    seen: Counter[str] = Counter()
    for seed in range(6):
        rng = random.Random(seed)
        requests = random_requests(rng, 16)
        loop = Loop(*loaded, depth)
        loop.run(requests, rng)
        warm = [each.again() for each in requests]
        loop.run(warm, rng)
        stats = loop.engine.stats()
        seen.update(preempted=stats.num_preemptions, cached=stats.prefix_cache_hits)
        assert stats.num_free_blocks == NUM_BLOCKS
        for cold, again in zip(requests, warm, strict=True):
            alone = cold.again()
            Loop(*loaded, 1).run([alone])
            assert cold.heard() == alone.heard()
            assert again.heard() == alone.heard()
            check_scores(cold)
            assert cold.finished is not None
            seen[cold.finished.error_code or cold.finished.reason.name] += 1
    wanted = ("preempted", "cached", "numerical_error", "STOP", "LENGTH", "REPETITION")
    assert all(seen[name] > 0 for name in wanted), seen


def check_scores(request: Served) -> None:
    """What was asked for came: logprobs of every token, the ids given, and of the prompt."""
    assert request.finished is not None
    failed = request.finished.reason is FinishReason.ERROR
    assert (request.finished.error_code == "numerical_error") == (POISON in request.prompt)
    if request.sampling.prompt_logprobs is not None and not failed:
        assert sorted(request.prompt_logprobs) == list(range(1, len(request.prompt)))
    if request.sampling.logprobs is not None:
        assert sorted(request.logprobs) == list(range(len(request.tokens)))
        asked = request.sampling.logprob_token_ids
        for _, token_ids, _ in request.logprobs.values():
            assert unpack_int32(token_ids).tolist()[1 + request.sampling.logprobs :] == list(asked)


def test_a_request_that_leaves_no_token_ends_alone_as_the_clients_fault(fp32: Loaded) -> None:
    plain = Served([8, 9], SequenceSampling(seed=1, max_tokens=4))
    contradicts = Served([8, 9], SequenceSampling(seed=1, allowed_token_ids=(EOS,), min_tokens=1))
    Loop(*fp32).run([plain, contradicts])
    assert plain.finished is not None
    assert len(plain.tokens) == 4
    assert contradicts.finished is not None
    assert contradicts.tokens == []
    assert (contradicts.finished.error_code, contradicts.finished.error_status) == ("no_token_left", 400)
