"""The pool against scripted engines on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path

import msgspec
import pytest

from splitserve.engine_core.errors import (
    EngineUnavailableError,
    InvalidRequestError,
    OverloadedError,
)
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.messages import (
    Abort,
    AddRequest,
    Draining,
    FinishReason,
    Hello,
    Loading,
    Refused,
    Rejected,
)
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.config import FrontendConfig
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.http_server import make_pool
from tests.frontend.engines.conftest import MakePool, state_of, until
from tests.frontend.engines.fake_engine import DEADLINE_S, FakeEngine
from tests.frontend.engines.messages import end, outputs, ready, tokens

PROMPT = [40, 41, 42]


def request(sampling: SamplingParams | None = None, prompt: list[int] | None = None) -> GenerationRequest:
    return GenerationRequest(
        "r", PROMPT if prompt is None else prompt, sampling or SamplingParams(max_tokens=100)
    )


async def collect(deltas: AsyncGenerator[OutputDelta, None]) -> list[OutputDelta]:
    async with asyncio.timeout(DEADLINE_S):
        return [delta async for delta in deltas]


async def test_a_request_goes_there_and_its_tokens_come_back(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with FakeEngine(addresses[0], model) as engine:
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        tokenizer = pool.find_model("alias").assets.tokenizer
        token_ids = tokenizer.encode("Hello world")
        task = asyncio.create_task(collect(pool.generate("m", request())))
        sent = await engine.receive(AddRequest)
        await engine.send(tokens(sent.handle, token_ids[:2]))
        await engine.send(
            outputs([(sent.handle, i, k) for k, i in enumerate(token_ids) if k >= 2], [end(sent.handle)])
        )
        deltas = await task
        assert "".join(delta.text for delta in deltas) == "Hello world"
        assert deltas[-1].finish_reason == "length"
        assert pool.stats().requests_finished == 1
        assert pool.stats().num_open == 0


async def test_a_frontend_may_start_before_its_engine(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    pool = await make_pool(addresses[0])
    assert state_of(pool) == "connecting"
    with pytest.raises(EngineUnavailableError, match="connecting"):
        pool.find_model("m")
    async with FakeEngine(addresses[0], model):
        await pool.wait_ready(DEADLINE_S)
        assert [served.names for served in pool.models()] == [("m", "alias")]


async def test_loading_is_shown_with_its_progress(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with FakeEngine(addresses[0], model) as engine:
        engine.hello_answer = Loading("engine-7", "weights", 0.25)
        pool = await make_pool(addresses[0])
        await until(lambda: state_of(pool) == "loading")
        status = pool.status()[0]
        assert (status.stage, status.fraction, status.engine_id) == ("weights", 0.25, "engine-7")
        with pytest.raises(EngineUnavailableError, match=r"loading \(weights, 25%\)"):
            await anext(pool.generate("m", request()))
        # A second Hello may be under way: it gets this answer too.
        engine.hello_answer = ready(1, model=model)
        await engine.send(engine.hello_answer)
        await pool.wait_ready(DEADLINE_S)


async def test_a_refusal_is_told_at_once(addresses: list[str], model: ModelInfo, make_pool: MakePool) -> None:
    async with FakeEngine(addresses[0], model) as engine:
        engine.hello_answer = Refused("speaks version 9, not 1", 9, "2.0")
        pool = await make_pool(addresses[0])
        with pytest.raises(EngineUnavailableError, match="speaks version 9"):
            await pool.wait_ready(DEADLINE_S)


async def test_an_engine_without_tokenizer_files_here_is_refused_by_name(
    addresses: list[str], model: ModelInfo, make_pool: MakePool, tmp_path: Path
) -> None:
    async with FakeEngine(addresses[0], msgspec.structs.replace(model, path=str(tmp_path))):
        pool = await make_pool(addresses[0])
        with pytest.raises(EngineUnavailableError, match=r"tokenizer\.json"):
            await pool.wait_ready(DEADLINE_S)
        again = await make_pool(addresses[0], assets_dir=model.path)
        await again.wait_ready(DEADLINE_S)


async def test_files_that_find_a_bug_of_ours_refuse_their_engine(
    addresses: list[str], model: ModelInfo, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(info: ModelInfo, directory: str) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr("splitserve.frontend.engines.assets_cache.load_model_assets", fail)
    async with FakeEngine(addresses[0], model):
        pool = await make_pool(addresses[0])
        with pytest.raises(EngineUnavailableError, match="refused"):
            await pool.wait_ready(DEADLINE_S)
        await pool.close()


@pytest.mark.parametrize("leave", ["close", "cancel"])
async def test_leaving_a_stream_aborts_it_at_once(
    addresses: list[str], model: ModelInfo, make_pool: MakePool, leave: str
) -> None:
    async with FakeEngine(addresses[0], model) as engine:
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        deltas = pool.generate("m", request(SamplingParams(n=2, max_tokens=100)))
        first = asyncio.create_task(anext(deltas))
        handles = [entry.handle for entry in await engine.receive_adds(2)]
        if leave == "close":
            await engine.send(tokens(handles[0], [50]))
            await first
            await deltas.aclose()
        else:
            first.cancel()
            with suppress(asyncio.CancelledError):
                await first
        assert (await engine.receive(Abort)).handles == handles
        assert pool.stats().requests_aborted == 1
        assert pool.stats().num_open == 0


async def test_a_stop_string_aborts_on_the_engine_before_the_delta_is_read(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with FakeEngine(addresses[0], model) as engine:
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        token_ids = pool.find_model("").assets.tokenizer.encode("Hello STOP and on")
        async with aclosing(
            pool.generate("m", request(SamplingParams(stop=("STOP",), max_tokens=100)))
        ) as deltas:
            first = asyncio.create_task(anext(deltas))
            handle = (await engine.receive(AddRequest)).handle
            await engine.send(tokens(handle, token_ids))
            delta = await first
            assert (delta.text, delta.stop_reason) == ("Hello ", "STOP")
            assert (await engine.receive(Abort)).handles == [handle]
        assert pool.stats().requests_finished == 1


async def test_a_killed_engine_fails_what_may_not_wait_and_a_new_one_is_taken(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    pool = await make_pool(addresses[0], failover_wait_s=0.0)
    async with FakeEngine(addresses[0], model, epoch=1) as engine:
        await pool.wait_ready(DEADLINE_S)
        task = asyncio.create_task(collect(pool.generate("m", request())))
        await engine.receive(AddRequest)
    with pytest.raises(EngineUnavailableError, match="connection"):
        await task
    assert state_of(pool) == "lost"
    assert pool.stats().engines_lost == 1
    async with FakeEngine(addresses[0], model, epoch=2) as engine:
        await pool.wait_ready(DEADLINE_S)
        task = asyncio.create_task(collect(pool.generate("m", request())))
        handle = (await engine.receive(AddRequest)).handle
        await engine.send(outputs([(handle, 60, 0)], [end(handle)], epoch=1))
        await engine.send(outputs([(handle, 50, 0)], [end(handle)], epoch=2))
        assert [delta.token_ids for delta in await task] == [[50]]
        assert pool.stats().stale_outputs == 1


@pytest.mark.parametrize(
    ("rejected", "kind"),
    [
        (Rejected(0, 400, "invalid_value", "bad", "logit_bias"), InvalidRequestError),
        (Rejected(0, 429, "overloaded", "queue full", None, 3.0), OverloadedError),
    ],
)
async def test_a_rejection_is_raised(
    addresses: list[str], model: ModelInfo, make_pool: MakePool, rejected: Rejected, kind: type[Exception]
) -> None:
    async with FakeEngine(addresses[0], model) as engine:
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        task = asyncio.create_task(collect(pool.generate("m", request())))
        handle = (await engine.receive(AddRequest)).handle
        await engine.send(msgspec.structs.replace(rejected, handle=handle))
        with pytest.raises(kind, match=rejected.message):
            await task
        assert pool.stats().requests_failed == 1


async def test_an_unknown_model_is_404(addresses: list[str], model: ModelInfo, make_pool: MakePool) -> None:
    async with FakeEngine(addresses[0], model):
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        with pytest.raises(InvalidRequestError, match="'other' does not exist") as caught:
            await collect(pool.generate("other", request()))
        assert (caught.value.status, caught.value.code) == (404, "model_not_found")


async def test_the_least_busy_engine_gets_the_request_and_a_draining_one_none(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with FakeEngine(addresses[0], model) as first, FakeEngine(addresses[1], model) as second:
        pool = await make_pool(*addresses)
        await until(lambda: [status.state for status in pool.status()] == ["ready", "ready"])
        assert len({id(status.model and status.model.assets) for status in pool.status()}) == 1
        assert len(pool.models()) == 1
        streams = [pool.generate("m", request()) for _ in range(3)]
        tasks = [asyncio.create_task(anext(stream)) for stream in streams]
        await first.receive(AddRequest)
        await second.receive(AddRequest)
        await until(lambda: [status.num_open for status in pool.status()] == [2, 1])
        await second.send(Draining(5.0))
        await until(lambda: pool.status()[1].state == "draining")
        streams.append(pool.generate("m", request()))
        tasks.append(asyncio.create_task(anext(streams[-1])))
        await until(lambda: [status.num_open for status in pool.status()] == [3, 1])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_ping_and_call_go_through_the_engine(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with FakeEngine(addresses[0], model) as engine:
        pool = await make_pool(addresses[0])
        with pytest.raises(EngineUnavailableError):
            await pool.ping(0.1)
        await pool.wait_ready(DEADLINE_S)
        (status,) = await pool.ping(DEADLINE_S)
        assert status.stats is not None
        assert status.stats.num_steps == 7
        assert status.last_pong_age_s is not None
        (explanation,) = await pool.explain([], "", DEADLINE_S)
        assert explanation.ok
        engine.answers_pings = engine.answers_calls = False
        with pytest.raises(EngineUnavailableError, match="ping"):
            await pool.ping(0.05)
        (explanation,) = await pool.explain([], "", 0.05)
        assert not explanation.ok


async def test_garbage_from_an_engine_is_counted_and_survived(
    addresses: list[str], model: ModelInfo, make_pool: MakePool, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeEngine(addresses[0], model) as engine:
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        for frames in (
            [b""],
            [b"\x93\x04"],
            [b"\xff" * 50],
            [b"a", b"b"],
            [b"\x95\x04\x01\xc4\x03abc\xc4\x00\xc4\x00"],
        ):
            await engine.send_frame(*frames)
        await until(lambda: pool.stats().protocol_errors == 5)
        assert sum("invalid message" in record.message for record in caplog.records) == 1
        assert state_of(pool) == "ready"
        assert await pool.ping(DEADLINE_S)


async def test_hello_is_said_again_when_the_engine_has_forgotten_us(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with FakeEngine(addresses[0], model, epoch=1) as engine:
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        before = engine.num_hellos
        engine.epoch = 2
        engine.hello_answer = ready(2, model=model)
        await until(lambda: pool.status()[0].epoch == 2 and state_of(pool) == "ready")
        assert engine.num_hellos > before


async def test_many_streams_get_their_own_tokens(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with FakeEngine(addresses[0], model) as engine:
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        tasks = [asyncio.create_task(collect(pool.generate("m", request()))) for _ in range(200)]
        handles = [entry.handle for entry in await engine.receive_adds(200)]
        for step in range(5):
            last = [end(handle) for handle in handles] if step == 4 else []
            await engine.send(outputs([(handle, (handle + step) % 300, step) for handle in handles], last))
        for handle, deltas in zip(handles, await asyncio.gather(*tasks), strict=True):
            ids = [token_id for delta in deltas for token_id in delta.token_ids]
            assert ids == [(handle + step) % 300 for step in range(5)]


async def test_more_messages_than_one_wake_up_takes_all_arrive(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with FakeEngine(addresses[0], model) as engine:
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        task = asyncio.create_task(collect(pool.generate("m", request(SamplingParams(max_tokens=500)))))
        handle = (await engine.receive(AddRequest)).handle
        for step in range(500):
            last = [end(handle)] if step == 499 else []
            await engine.send(outputs([(handle, step % 300, step)], last))
        assert [i for delta in await task for i in delta.token_ids] == [step % 300 for step in range(500)]


async def test_a_reader_that_stalls_gets_everything_in_one_delta(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with FakeEngine(addresses[0], model) as engine:
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        async with aclosing(pool.generate("m", request())) as deltas:
            first = asyncio.create_task(anext(deltas))
            handle = (await engine.receive(AddRequest)).handle
            await engine.send(tokens(handle, [50]))
            await first
            for index in range(1, 50):
                await engine.send(tokens(handle, [50 + index], index))
            await engine.send(outputs([], [end(handle)]))
            await until(lambda: pool.stats().num_open == 0)
            last = await anext(deltas)
            assert len(last.token_ids) == 49
            assert last.finish_reason == "length"


async def test_closing_the_pool_aborts_and_fails_open_streams(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with FakeEngine(addresses[0], model) as engine:
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        task = asyncio.create_task(collect(pool.generate("m", request())))
        handle = (await engine.receive(AddRequest)).handle
        await pool.close()
        await pool.close()
        assert (await engine.receive(Abort)).handles == [handle]
        with pytest.raises(EngineUnavailableError, match="shutting down"):
            await task
        with pytest.raises(EngineUnavailableError, match="closed"):
            await collect(pool.generate("m", request()))


async def test_hello_names_this_frontend(addresses: list[str], model: ModelInfo, make_pool: MakePool) -> None:
    async with FakeEngine(addresses[0], model) as engine:
        await make_pool(addresses[0])
        assert (await engine.receive(Hello)).frontend_id == "test"


async def test_what_an_engine_aborts_as_it_ends_goes_on_elsewhere(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with FakeEngine(addresses[0], model) as first, FakeEngine(addresses[1], model) as second:
        pool = await make_pool(*addresses)
        await until(lambda: [status.state for status in pool.status()] == ["ready", "ready"])
        task = asyncio.create_task(collect(pool.generate("m", request())))
        handle = (await first.receive(AddRequest)).handle
        await first.send(tokens(handle, [50]))
        await first.send(Draining(5.0))
        await first.send(outputs([], [end(handle, FinishReason.ABORT)]))
        again = await second.receive(AddRequest)
        assert unpack_int32(again.resume_token_ids).tolist() == [50]
        await second.send(outputs([(again.handle, 51, 1)], [end(again.handle)]))
        assert [token_id for delta in await task for token_id in delta.token_ids] == [50, 51]


async def test_engines_beyond_this_machine_are_reached_without_keys_where_that_is_allowed() -> None:
    config = FrontendConfig(engines=("tcp://0.0.0.0:9",), allow_insecure_tcp=True)
    config.validate()
    pool = make_pool(config)
    await pool.start()
    assert [status.state for status in pool.status()] == ["connecting"]
    await pool.close()
