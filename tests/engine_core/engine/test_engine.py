from __future__ import annotations

import pytest

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.errors import (
    ContextLengthError,
    IntegrityError,
    InvalidRequestError,
    OverloadedError,
    ProtocolError,
    SplitServeError,
)
from splitserve.engine_core.executor.simulated.tokens import TokenRule
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32, unpack_int64
from splitserve.engine_core.ipc.messages import AddRequest, FinishReason, StepOutputs
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput
from splitserve.engine_core.scheduler.output import GATHER_S, NEVER
from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.engine_core.engine_driver import EngineDriver

CONFIG = SchedulerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=16,
    max_num_waiting=3,
    max_model_len=32,
    block_size=4,
    num_blocks=16,
)


def make_engine(
    config: SchedulerConfig = CONFIG, *, vocab_size: int = 50, max_model_len: int = 32
) -> EngineCore:
    model = ModelInfo("path", "Architecture", "float32", vocab_size, max_model_len, [0])
    return EngineCore(config, model, 1, ManualClock())


def make_message(prompt: list[int] | None = None, handle: int = 0, **fields: object) -> AddRequest:
    prompt_bytes = pack_int32([1, 2, 3] if prompt is None else prompt)
    defaults = {"handle": handle, "request_id": "r", "prompt_token_ids": prompt_bytes}
    return AddRequest(**{**defaults, "sampling": SequenceSampling(seed=1), **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "error", "param"),
    [
        (make_message([]), InvalidRequestError, "prompt"),
        (make_message([1, 50]), InvalidRequestError, "prompt"),
        (make_message([-1, 5]), InvalidRequestError, "prompt"),
        (make_message([1] * 32), ContextLengthError, "prompt"),
        (make_message([1] * 3000), ContextLengthError, "prompt"),
        (make_message(resume_token_ids=pack_int32([50])), InvalidRequestError, "resume_token_ids"),
        (
            make_message([1] * 20, resume_token_ids=pack_int32([1] * 13)),
            ContextLengthError,
            "resume_token_ids",
        ),
        (make_message(prompt_token_ids=b"123"), ProtocolError, None),
        (make_message(resume_token_ids=b"12345"), ProtocolError, None),
        (make_message(sampling=SequenceSampling(temperature=3)), InvalidRequestError, "temperature"),
        (
            make_message(sampling=SequenceSampling(temperature=float("nan"))),
            InvalidRequestError,
            "temperature",
        ),
        (
            make_message(sampling=SequenceSampling(stop_token_ids=(50,))),
            InvalidRequestError,
            "stop_token_ids",
        ),
        (make_message(sampling=SequenceSampling(logit_bias={50: 1.0})), InvalidRequestError, "logit_bias"),
        (
            make_message(sampling=SequenceSampling(max_tokens=2, min_tokens=3)),
            InvalidRequestError,
            "min_tokens",
        ),
        (make_message(handle=-1), InvalidRequestError, "handle"),
        (make_message(handle=2**63), InvalidRequestError, "handle"),
        (make_message(priority=2**40), InvalidRequestError, "priority"),
        (make_message(timeout_s=float("nan")), InvalidRequestError, "timeout_s"),
        (make_message(timeout_s=-1.0), InvalidRequestError, "timeout_s"),
        (make_message(queue_timeout_s=float("inf")), InvalidRequestError, "queue_timeout_s"),
        (make_message(request_id="x" * 257), InvalidRequestError, "request_id"),
        (make_message(tenant="x" * 257), InvalidRequestError, "tenant"),
        (make_message(cache_salt="x" * 257), InvalidRequestError, "cache_salt"),
    ],
)
def test_a_bad_request_is_refused_alone(
    message: AddRequest, error: type[SplitServeError], param: str | None
) -> None:
    engine = make_engine()
    engine.add(b"good", make_message())
    with pytest.raises(error) as caught:
        engine.add(b"bad", message)
    assert getattr(caught.value, "param", None) == param
    engine.check_integrity()
    assert engine.stats().num_waiting == 1
    assert engine.stats().num_frontends == 1


def test_the_error_names_the_limit_and_what_was_asked() -> None:
    with pytest.raises(ContextLengthError, match=r"maximum context length is 32 tokens.* resulted in 40"):
        make_engine().add(b"f", make_message([1] * 40))


def test_a_prompt_that_never_fits_the_pool_is_refused() -> None:
    config = SchedulerConfig(max_model_len=4096, block_size=4, num_blocks=3)
    engine = make_engine(config, max_model_len=4096)
    assert engine.max_num_tokens == 12
    engine.add(b"f", make_message([1] * 11))
    with pytest.raises(
        ContextLengthError, match=r"maximum context length is 12 tokens.* 12 tokens, and the completion needs"
    ):
        engine.add(b"f", make_message([1] * 12, handle=1))


def test_a_handle_is_unique_per_frontend_while_open() -> None:
    engine = make_engine()
    engine.add(b"a", make_message(handle=5))
    engine.add(b"b", make_message(handle=5))
    with pytest.raises(InvalidRequestError) as caught:
        engine.add(b"a", make_message(handle=5))
    assert caught.value.code == "duplicate_handle"
    engine.abort(b"a", [5])
    engine.add(b"a", make_message(handle=5))
    engine.check_integrity()


def test_the_queue_is_bounded_beside_the_rows_that_are_free() -> None:
    engine = make_engine()
    for handle in range(CONFIG.max_num_seqs + CONFIG.max_num_waiting):
        engine.add(b"f", make_message(handle=handle))
    with pytest.raises(OverloadedError) as caught:
        engine.add(b"f", make_message(handle=7))
    assert (caught.value.status, caught.value.code) == (429, "overloaded")
    # Four start; the bound is the same for those that come when no row is free.
    engine.plan()
    assert engine.stats().num_waiting == CONFIG.max_num_waiting
    with pytest.raises(OverloadedError):
        engine.add(b"f", make_message(handle=7))
    engine.abort(b"f", [0])
    engine.add(b"f", make_message(handle=7))


def test_a_model_shorter_than_configured_sets_the_limit() -> None:
    assert make_engine(max_model_len=10).max_num_tokens == 10


def test_a_lone_request_ends_with_length_when_the_pool_is_full() -> None:
    config = SchedulerConfig(max_model_len=1000, block_size=4, num_blocks=5)
    driver = EngineDriver(config)
    sequence = driver.add([1, 2, 3])
    driver.run(max_turns=25)
    assert len(sequence.output) == 17
    assert sequence.finished is not None
    assert sequence.finished.reason is FinishReason.LENGTH
    assert driver.engine.stats().num_preemptions == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_max_tokens_0_computes_the_prompt_and_emits_nothing(depth: int) -> None:
    driver = EngineDriver(CONFIG, depth=depth)
    # With no token to generate, the prompt may fill the context.
    sequence = driver.add([1 + i % 9 for i in range(32)], max_tokens=0, prompt_logprobs=1, logprobs=1)
    driver.run()
    assert sequence.finished is not None
    assert sequence.finished.reason is FinishReason.LENGTH
    assert sequence.output == []
    assert sequence.logprobs == []
    assert sequence.prompt_logprob_indices == list(range(1, 32))


def test_a_dropped_token_cannot_stop_a_request() -> None:
    driver = EngineDriver(CONFIG, TokenRule(50, (0,), eos_after=0))
    sequence = driver.add([1, 2, 3], max_tokens=0)
    driver.run()
    assert sequence.finished is not None
    assert sequence.finished.reason is FinishReason.LENGTH


def test_generation_ends_at_the_context_limit() -> None:
    driver = EngineDriver(CONFIG)
    sequence = driver.add([1] * 30)
    driver.run()
    assert len(sequence.output) == 2
    assert sequence.finished is not None
    assert sequence.finished.reason is FinishReason.LENGTH


def test_eos_ends_with_stop_and_no_stop_token() -> None:
    driver = EngineDriver(CONFIG, TokenRule(50, (0,), eos_after=4))
    sequence = driver.add([1, 2, 3])
    unstoppable = driver.add([1, 2, 3], ignore_eos=True, max_tokens=8)
    driver.run()
    assert sequence.output[-1] == 0
    assert len(sequence.output) == 5
    assert sequence.finished is not None
    assert (sequence.finished.reason, sequence.finished.stop_token_id) == (FinishReason.STOP, None)
    assert len(unstoppable.output) == 8


def test_the_engine_does_not_stop_before_min_tokens_even_if_a_worker_forgets_to_mask() -> None:
    engine = make_engine()
    engine.add(b"f", make_message(sampling=SequenceSampling(seed=1, min_tokens=2, max_tokens=9)))
    for _ in range(2):
        output = engine.plan()
        assert output is not None
        engine.apply(_answer(output.step, token_id=0))
    assert engine.has_requests
    output = engine.plan()
    assert output is not None
    engine.apply(_answer(output.step, token_id=0))
    assert not engine.has_requests


def _answer(step: int, token_id: int) -> ModelRunnerOutput:
    return ModelRunnerOutput(step, pack_int32([0]), pack_int32([token_id]))


@pytest.mark.parametrize("num_resumed", [1, 4, 7])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_resumed_request_goes_on_where_it_was(num_resumed: int, depth: int) -> None:
    driver = EngineDriver(CONFIG, depth=depth)
    sequence = driver.add([1, 2, 3], num_resumed=num_resumed, max_tokens=9, logprobs=1, prompt_logprobs=1)
    driver.run()
    assert sequence.output == sequence.expected
    assert len(sequence.output) == 9
    assert sequence.prompt_logprob_indices == [], "they were sent before the first token"


def test_a_resumed_request_that_had_ended_ends_at_once() -> None:
    driver = EngineDriver(CONFIG, TokenRule(50, (0,), eos_after=3))
    by_length = driver.add([1, 2, 3], num_resumed=2, max_tokens=2)
    by_eos = driver.add([1, 2, 3], num_resumed=4, max_tokens=9)
    driver.check_ended()
    assert by_length.finished is not None
    assert by_length.finished.reason is FinishReason.LENGTH
    assert by_eos.finished is not None
    assert by_eos.finished.reason is FinishReason.STOP
    assert driver.steps == []


@pytest.mark.parametrize("num_turns", [0, 1, 3])
@pytest.mark.parametrize("depth", [1, 2])
def test_an_abort_frees_everything_and_says_nothing(num_turns: int, depth: int) -> None:
    driver = EngineDriver(CONFIG, depth=depth)
    sequence = driver.add([1, 2, 3])
    other = driver.add([4, 5], max_tokens=5)
    for _ in range(num_turns):
        driver.turn()
    driver.abort(sequence)
    driver.engine.abort(b"frontend", [sequence.handle, 12345])
    driver.engine.abort(b"nobody", [other.handle])
    driver.run()
    assert sequence.finished is None
    assert other.finished is not None
    assert driver.engine.stats().finished == {"abort": 1, "length": 1}


def test_a_frontend_that_leaves_takes_its_requests_and_outputs_along() -> None:
    driver = EngineDriver(CONFIG)
    driver.add([1, 2, 3], b"leaving")
    driver.add([1, 2, 4], b"leaving")
    staying = driver.add([4, 5], b"staying", max_tokens=5)
    output = driver.engine.plan()
    assert output is not None
    driver.executor.submit(output)
    driver.leave(b"leaving")
    driver.engine.drop_frontend(b"unknown")
    assert driver.engine.stats().num_frontends == 1
    driver.run()
    assert staying.finished is not None


def test_one_message_per_frontend_and_step() -> None:
    driver = EngineDriver(CONFIG)
    for frontend in (b"a", b"b", b"a"):
        driver.add([1, 2, 3], frontend, max_tokens=5)
    output = driver.engine.plan()
    assert output is not None
    driver.engine.take_outputs()
    driver.executor.submit(output)
    driver.clock.advance(1.0)
    for message in driver.executor.receive():
        driver.engine.apply(message)  # type: ignore[arg-type]
    outputs = driver.engine.take_outputs()
    assert {frontend: unpack_int64(of.handles).tolist() for frontend, of in outputs.items()} == {
        b"a": [0, 2],
        b"b": [1],
    }
    assert driver.engine.take_outputs() == {}


def test_tokens_of_a_request_that_does_not_stream_come_joined_and_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = EngineDriver(CONFIG, step_s=0.4 * GATHER_S)
    messages: list[StepOutputs] = []
    take_outputs = driver.engine.take_outputs

    def listen() -> dict[bytes, StepOutputs]:
        taken = take_outputs()
        messages.extend(taken.values())
        return taken

    monkeypatch.setattr(driver.engine, "take_outputs", listen)
    sequence = driver.add([1, 2, 3], b"a", max_tokens=12, ignore_eos=True, streams=False)
    driver.run()
    assert len(sequence.output) == 12
    # Start and first token leave at once, then the others as their time comes, the last with the end.
    counts = [len(unpack_int32(message.token_ids)) for message in messages]
    assert counts == [0, 1, 4, 4, 3]
    assert [len(message.finished) for message in messages] == [0, 0, 0, 0, 1]


def test_gathered_tokens_are_due_though_no_step_ends() -> None:
    driver = EngineDriver(CONFIG, step_s=GATHER_S / 100)
    sequence = driver.add([1, 2, 3], b"a", max_tokens=12, ignore_eos=True, streams=False)
    driver.turn()
    assert (len(sequence.output), driver.engine.outputs_due_s) == (1, NEVER)
    driver.turn()
    assert (len(sequence.output), driver.engine.outputs_due_s) == (1, driver.clock.monotonic() + GATHER_S)
    driver.clock.advance(GATHER_S)
    driver.take_outputs()
    assert (len(sequence.output), driver.engine.outputs_due_s) == (2, NEVER)


def test_a_timeout_ends_a_request_wherever_it_stands() -> None:
    driver = EngineDriver(SchedulerConfig(max_num_seqs=1, max_model_len=64, num_blocks=16))
    running = driver.add([1, 2, 3], timeout_s=3.0)
    waiting = driver.add([1, 2, 3], timeout_s=2.0)
    patient = driver.add([1, 2, 3], max_tokens=2, timeout_s=100.0)
    driver.run()
    for sequence in (running, waiting):
        assert sequence.finished is not None
        end = sequence.finished
        assert (end.reason, end.error_code, end.error_status) == (FinishReason.ERROR, "timeout", 504)
    assert 0 < len(running.output) <= 3
    assert patient.finished is not None
    assert patient.finished.reason is FinishReason.LENGTH


def test_started_reports_how_long_a_request_waited() -> None:
    driver = EngineDriver(SchedulerConfig(max_num_seqs=1, max_model_len=64, num_blocks=16))
    driver.add([1, 2, 3], max_tokens=4)
    second = driver.add([1, 2, 3], max_tokens=1)
    driver.run()
    assert second.started is not None
    assert second.started.queue_time_s == 4.0


def test_requests_that_are_handed_over_leave_without_a_word() -> None:
    driver = EngineDriver(CONFIG)
    sequences = [driver.add([1, 2, 3]) for _ in range(6)]
    driver.turn()
    driver.engine.abort_all()
    for sequence in sequences:
        sequence.was_aborted = True
    driver.run()
    assert driver.engine.stats().finished == {"abort": 6}


def test_tenants_and_salts_share_no_prefix() -> None:
    driver = EngineDriver(CONFIG)
    prompt = list(range(1, 14))
    cached = []
    for tenant, salt in (("a", ""), ("a", ""), ("b", ""), ("a", "x"), ("", "a"), ("b", "")):
        sequence = driver.add(prompt, tenant=tenant, cache_salt=salt, max_tokens=1)
        driver.run()
        assert sequence.started is not None
        cached.append(sequence.started.num_cached_tokens)
    assert cached == [0, 12, 0, 0, 0, 12]


def test_a_reset_prefix_cache_is_empty_for_waiting_requests_too() -> None:
    driver = EngineDriver(CONFIG)
    prompt = list(range(1, 14))
    driver.add(prompt, max_tokens=1)
    driver.run()
    waiting = driver.add(prompt, max_tokens=1)
    assert driver.engine.reset_prefix_cache() == 3
    assert driver.engine.stats().num_cached_blocks == 0
    driver.run()
    assert waiting.started is not None
    assert waiting.started.num_cached_tokens == 0


def test_prompt_logprobs_are_sent_once_even_if_the_prompt_is_computed_twice() -> None:
    config = SchedulerConfig(
        max_num_seqs=2, max_num_batched_tokens=5, max_model_len=36, block_size=2, num_blocks=18
    )
    driver = EngineDriver(config)
    driver.add([1, 2, 3], max_tokens=30)
    asks = driver.add([i % 9 + 1 for i in range(30)], max_tokens=2, prompt_logprobs=2)
    while driver.engine.stats().num_preemptions == 0:
        driver.turn()
    assert 0 < len(asks.prompt_logprob_indices) < 29
    driver.run()
    assert asks.finished is not None
    assert asks.finished.num_preemptions == 1
    assert asks.prompt_logprob_indices == list(range(1, 30))


def test_stats_count_exactly() -> None:
    driver = EngineDriver(CONFIG)
    driver.add([1, 2, 3], max_tokens=4)
    driver.add([1, 2, 3, 4, 5], max_tokens=2)
    assert driver.engine.stats().num_waiting == 2
    driver.run()
    driver.clock.advance(2.5)
    stats = driver.engine.stats()
    assert (stats.prompt_tokens, stats.generation_tokens, stats.num_steps) == (8, 6, 4)
    assert (stats.num_blocks, stats.num_free_blocks, stats.block_size) == (16, 16, 4)
    assert stats.last_step_age_s == 2.5
    assert stats.finished == {"length": 2}


def test_integrity_finds_a_request_nobody_schedules() -> None:
    driver = EngineDriver(CONFIG)
    driver.add([1, 2, 3])
    driver.engine.check_integrity()
    request = next(iter(driver.engine._requests.table))
    driver.engine.scheduler.remove(request)
    with pytest.raises(IntegrityError, match="1 requests are in flight, 0 wait or run"):
        driver.engine.check_integrity()
