"""An engine with a verified simulated worker; plays busy loop and frontends and checks every message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.engine.listeners import Listeners
from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.executor.simulated.executor import ScriptedFault, SimulatedExecutor
from splitserve.engine_core.executor.simulated.model import SimulatedModel
from splitserve.engine_core.executor.simulated.tokens import TokenRule, reference_output
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32, unpack_int64
from splitserve.engine_core.ipc.messages import AddRequest, Finished, FinishReason, Started, StepOutputs
from splitserve.engine_core.ipc.wire import TokenLogprobs
from splitserve.engine_core.ipc.worker_messages import AdapterLoaded, ModelRunnerOutput, SchedulerOutput
from splitserve.engine_core.kv_events.format import encode_batch, external_hash
from splitserve.engine_core.kv_events.recorder import KVEventRecorder
from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.engine_core.kv_events.router import Router
from tests.engine_core.loops import cut_at_loop, ends_in_loop

EPOCH = 7
STEP_S = 1.0
COMPLETE = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.REPETITION)
SECRET = b"s" * 32


@dataclass
class Tracked:
    """What a frontend knows of one request, and what it must come to."""

    frontend: bytes
    handle: int
    prompt: list[int]
    sampling: SequenceSampling
    expected: list[int]
    output: list[int]
    num_resumed: int
    streams: bool
    started: Started | None = None
    finished: Finished | None = None
    was_aborted: bool = False
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprob_indices: list[int] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return self.finished is None and not self.was_aborted


class EngineDriver:
    """Drives one engine; every public method leaves the engine's bookkeeping checked."""

    def __init__(
        self,
        config: SchedulerConfig,
        rule: TokenRule | None = None,
        *,
        depth: int = 1,
        faults: Sequence[ScriptedFault] = (),
        sliding_window: int = 0,
        group_windows: Sequence[int] = (),
        step_s: float = STEP_S,
        fits_memory: Callable[[SchedulerOutput], bool] = lambda step: True,
        survives: Callable[[SchedulerOutput], bool] = lambda step: True,
    ) -> None:
        self.config = config
        self._step_s = step_s
        self.rule = rule or TokenRule(vocab_size=50, eos_token_ids=(0,))
        self.depth = depth
        self.clock = ManualClock()
        model = SimulatedModel(
            rule=self.rule,
            max_model_len=config.max_model_len,
            verify=True,
            block_size=config.block_size,
            sliding_window=sliding_window,
            group_windows=tuple(group_windows),
        )
        self.executor = SimulatedExecutor(
            self.clock,
            model,
            step_time_s=step_s,
            faults=faults,
            fits_memory=fits_memory,
            survives=survives,
        )
        self.executor.start()
        self._allocate()
        self._kv_events = KVEventRecorder(config.block_size, has_offload_tier=config.num_host_blocks > 0)
        self.router = Router()
        self.engine = EngineCore(
            config,
            model.info(),
            EPOCH,
            self.clock,
            secret=SECRET,
            listeners=Listeners(kv_events=self._kv_events),
        )
        self.sequences: dict[tuple[bytes, int], Tracked] = {}
        self.steps: list[SchedulerOutput] = []
        self._next_handle = 0

    def add(
        self,
        prompt: Sequence[int],
        frontend: bytes = b"frontend",
        *,
        num_resumed: int = 0,
        priority: int = 0,
        tenant: str = "",
        cache_salt: str = "",
        timeout_s: float = 0.0,
        queue_timeout_s: float = 0.0,
        streams: bool = True,
        adapter: str = "",
        **sampling_fields: object,
    ) -> Tracked:
        """Add a request; num_resumed of its tokens count as emitted already.

        Raises:
            SplitServeError: the engine refuses it; nothing is tracked then.
        """
        sampling = SequenceSampling(**{"seed": 0, "max_tokens": None, **sampling_fields})  # type: ignore[arg-type]
        expected = reference_output(self.rule, prompt, sampling, self.engine.max_num_tokens)
        if sampling.repetition_detection is not None:
            expected = cut_at_loop(expected, sampling.repetition_detection, sampling.min_tokens)
        num_resumed = min(num_resumed, len(expected))
        handle = self._next_handle
        self._next_handle += 1
        message = AddRequest(
            handle=handle,
            request_id=f"request-{handle}",
            prompt_token_ids=pack_int32(prompt),
            sampling=sampling,
            resume_token_ids=pack_int32(expected[:num_resumed]),
            priority=priority,
            tenant=tenant,
            cache_salt=cache_salt,
            timeout_s=timeout_s,
            queue_timeout_s=queue_timeout_s,
            streams=streams,
            adapter=adapter,
        )
        sequence = Tracked(
            frontend, handle, list(prompt), sampling, expected, expected[:num_resumed], num_resumed, streams
        )
        self.engine.add(frontend, message)
        self.sequences[frontend, handle] = sequence
        self.check()
        self.take_outputs()
        return sequence

    def check(self) -> None:
        """Compare the engine's bookkeeping with itself, and with what a router has been told of it."""
        self.engine.check_integrity()
        self.router.hear(encode_batch(self._kv_events.take()))
        kv = self.engine.scheduler.kv
        cached = set(filter(is_hash, kv.cache.index._block_of))
        assert self.router.hashes("GPU") == set(map(external_hash, cached))
        saved = (
            set(filter(is_hash, kv.cache.offload.tier._slot_of)) if kv.cache.offload is not None else set()
        )
        assert self.router.hashes("CPU") == set(map(external_hash, saved))
        # What is cached nowhere any more is not remembered either.
        assert set(self._kv_events._blocks) == (cached | saved if kv.cache.offload else set())

    def abort(self, sequence: Tracked) -> None:
        self.engine.abort(sequence.frontend, [sequence.handle])
        self.check()
        # What ended before the abort may still arrive; a frontend ignores it.
        if sequence.is_open:
            sequence.was_aborted = True

    def leave(self, frontend: bytes) -> None:
        self.engine.drop_frontend(frontend)
        self.check()
        for sequence in self.sequences.values():
            if sequence.frontend == frontend and sequence.is_open:
                sequence.was_aborted = True

    def lose_worker(self) -> None:
        """The worker dies; the engine starts over with a new one."""
        self.executor.lose()
        try:
            self.executor.receive()
        except WorkerError:
            self.start_over()

    def start_over(self) -> None:
        self.engine.start_over()
        self.check()
        assert self.engine.num_steps_in_flight == 0
        self.executor.restart()
        self._allocate()
        self.take_outputs()

    def _allocate(self) -> None:
        self.executor.init_kv_cache(self.config.num_blocks, self.config.num_host_blocks)
        self.executor.receive()

    def plan(self) -> SchedulerOutput | None:
        """Plan and submit one step."""
        output = self.engine.plan()
        self.check()
        if output is not None:
            self._check_budget(output)
            self.steps.append(output)
            self.executor.submit(output)
        for adapter in self.engine.take_adapters():
            self.executor.load_adapter(adapter)
        self.take_outputs()
        return output

    def apply(self) -> None:
        """Let the oldest step in flight end and apply it."""
        self.clock.advance(self._step_s)
        try:
            messages = self.executor.receive()
        except WorkerError:
            self.start_over()
            return
        for message in messages:
            if isinstance(message, AdapterLoaded):
                self.engine.adapter_loaded(message)
                continue
            assert isinstance(message, ModelRunnerOutput)
            self.engine.apply(message)
            self.check()
        self.take_outputs()

    def turn(self) -> None:
        """One turn of the loop: keep `depth` steps in flight, apply one."""
        while self.engine.num_steps_in_flight < self.depth and self.plan() is not None:
            pass
        if self.engine.num_steps_in_flight or self.executor.poll_timeout_s() is not None:
            self.apply()

    def run(self, max_turns: int = 2000) -> None:
        """Turn until nothing is open or in flight; fails after max_turns."""
        for _ in range(max_turns):
            self.engine.expire()
            self.take_outputs()
            if not self.engine.has_requests and not self.engine.num_steps_in_flight:
                self.check_ended()
                return
            self.turn()
        raise AssertionError(f"requests are still open after {max_turns} turns")

    def take_outputs(self) -> None:
        for frontend, outputs in self.engine.take_outputs().items():
            self._hear(frontend, outputs)

    def check_ended(self) -> None:
        """Every request ended once, no block and no row is held, and tokens are those of a lone run."""
        for sequence in self.sequences.values():
            assert not sequence.is_open, f"request {sequence.handle} never ended"
            if sequence.finished is not None and sequence.finished.reason in COMPLETE:
                _check_complete(sequence)
        stats = self.engine.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        assert stats.num_free_blocks == self.config.num_blocks

    def _check_budget(self, output: SchedulerOutput) -> None:
        num_tokens = unpack_int32(output.num_tokens)
        assert num_tokens.sum() <= self.config.max_num_batched_tokens
        assert num_tokens.max() <= (self.config.max_prefill_tokens or self.config.max_num_batched_tokens)
        assert len(num_tokens) <= self.config.max_num_seqs

    def _hear(self, frontend: bytes, outputs: StepOutputs) -> None:
        assert outputs.epoch == EPOCH
        for started in outputs.started:
            sequence = self._open_sequence(frontend, started.handle)
            assert sequence.started is None
            sequence.started = started
        handles = unpack_int64(outputs.handles).tolist()
        tokens = unpack_int32(outputs.token_ids).tolist()
        indices = unpack_int32(outputs.token_indices).tolist()
        for handle, token, index in zip(handles, tokens, indices, strict=True):
            sequence = self._open_sequence(frontend, handle)
            assert sequence.started is not None
            assert index == len(sequence.output), "a token is missing or repeated"
            sequence.output.append(token)
            assert sequence.output == sequence.expected[: index + 1]
        self._hear_logprobs(frontend, outputs)
        for finished in outputs.finished:
            sequence = self._open_sequence(frontend, finished.handle)
            assert not sequence.was_aborted
            sequence.finished = finished

    def _hear_logprobs(self, frontend: bytes, outputs: StepOutputs) -> None:
        for logprobs in outputs.logprobs:
            sequence = self._open_sequence(frontend, logprobs.key)
            assert logprobs.token_index == sequence.num_resumed + len(sequence.logprobs)
            assert int(unpack_int32(logprobs.token_ids)[0]) == sequence.output[logprobs.token_index]
            sequence.logprobs.append(logprobs)
        for logprobs in outputs.prompt_logprobs:
            sequence = self._open_sequence(frontend, logprobs.key)
            assert int(unpack_int32(logprobs.token_ids)[0]) == sequence.prompt[logprobs.token_index]
            sequence.prompt_logprob_indices.append(logprobs.token_index)

    def _open_sequence(self, frontend: bytes, handle: int) -> Tracked:
        sequence = self.sequences[frontend, handle]
        # What was gathered before the abort comes after it; a frontend ignores it.
        assert not (sequence.was_aborted and sequence.streams), f"output for request {handle} after its abort"
        assert sequence.finished is None, f"output for request {handle} after its end"
        return sequence


def is_hash(name: bytes) -> bool:
    """Whether a cached block is one of a prefix, rather than of a window group beside it."""
    return len(name) == 32


def _check_complete(sequence: Tracked) -> None:
    assert sequence.output == sequence.expected
    _check_repetition(sequence)
    if sequence.sampling.logprobs is not None:
        assert len(sequence.logprobs) == len(sequence.output) - sequence.num_resumed
    if sequence.sampling.prompt_logprobs is not None and not sequence.num_resumed:
        assert sequence.prompt_logprob_indices == list(range(1, len(sequence.prompt)))


def _check_repetition(sequence: Tracked) -> None:
    sampling, output, finished = sequence.sampling, sequence.output, sequence.finished
    assert finished is not None
    if finished.reason is FinishReason.STOP:
        return
    detection = sampling.repetition_detection
    loops = detection is not None and len(output) > sampling.min_tokens and ends_in_loop(output, detection)
    assert finished.reason is (FinishReason.REPETITION if loops else FinishReason.LENGTH)
