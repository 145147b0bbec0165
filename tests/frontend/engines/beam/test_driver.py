"""The driver of a beam search against a scripted engine: what it asks, and what it makes of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pytest

from splitserve.engine_core.errors import (
    EngineRequestError,
    EngineUnavailableError,
    InvalidRequestError,
    ProtocolError,
    SplitServeError,
)
from splitserve.engine_core.ipc.codec import pack_float32, pack_int32, unpack_int32
from splitserve.engine_core.ipc.messages import AddRequest, Finished, FinishReason, Rejected
from splitserve.engine_core.ipc.wire import TokenLogprobs
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.frontend.engines.beam.driver import BeamRun
from splitserve.frontend.engines.connection.client import EngineClient
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.connection.session import EngineSession
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.text.model_assets import load_model_assets
from tests.frontend.checkpoints import write_checkpoint
from tests.frontend.engines.messages import MODEL, end, outputs, ready

PROMPT = [40, 41, 42]
# Best to worst after any output: whatever is asked for, these come, with logprobs of -1, -2 and so on.
ORDER = [60, 61, 2, 62, 63, 64, 65, 66]

Answer = Callable[["ScriptedClient", AddRequest], None]


class ScriptedClient(EngineClient):
    """What a search calls of EngineClient; answers come at once.

    Attributes:
        seen: the requests of each step.
        aborted: handles that were still open when the search let go of them.
    """

    def __init__(self, answer: Answer | None = None) -> None:
        self.session = EngineSession("test", "0")
        self.session.receive(ready(), 0.0)
        self.seen: list[list[AddRequest]] = []
        self.aborted: list[int] = []
        self._answer = answer or ScriptedClient.reply

    def open(self, requests: Sequence[AddRequest], wake: Callable[[], None]) -> list[OpenSequence]:
        requests = [
            msgspec.structs.replace(request, handle=self.session.next_handle()) for request in requests
        ]
        self.seen.append(requests)
        sources = [self.session.open(request, wake) for request in requests]
        for request in requests:
            self._answer(self, request)
        self.session.sequences.wake_up(0.0)
        return sources

    def abort(self, sequences: Iterable[OpenSequence]) -> None:
        handles = [sequence.handle for sequence in sequences]
        self.aborted += [handle for handle in handles if handle in self.session.sequences]
        self.session.abort(handles)

    def reply(self, request: AddRequest, reason: FinishReason = FinishReason.LENGTH) -> None:
        """Answer with the first token of ORDER, and as many logprobs as are asked for."""
        handle, sampling = request.handle, request.sampling
        top = ORDER[: sampling.logprobs]
        entry = self.entry(handle, 0, [ORDER[0], *top, *sampling.logprob_token_ids])
        prompt = unpack_int32(request.prompt_token_ids).tolist()
        scores = [
            self.entry(handle, i, [prompt[i], *ORDER[: sampling.prompt_logprobs]])
            for i in range(1, len(prompt))
            if sampling.prompt_logprobs is not None
        ]
        finished = msgspec.structs.replace(end(handle, reason), num_cached_tokens=len(prompt) - 1)
        self.session.receive(
            outputs([(handle, ORDER[0], 0)], [finished], logprobs=[entry], prompt_logprobs=scores), 0.0
        )

    def entry(self, handle: int, index: int, token_ids: list[int]) -> TokenLogprobs:
        values = [-1.0 - ORDER.index(i) if i in ORDER else -50.0 for i in token_ids]
        return TokenLogprobs(handle, index, 1, pack_int32(token_ids), pack_float32(values))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    """387 tokens, 512 positions, 2 is EOS."""
    info = msgspec.structs.replace(MODEL, path=str(write_checkpoint(tmp_path_factory.mktemp("model"))))
    return ServedModel(("m",), info, load_model_assets(info), 1, 8, 20, 0)


def request(n: int = 2, **options: Any) -> GenerationRequest:
    fields = {name: options.pop(name) for name in list(options) if name in GenerationRequest.__slots__}
    sampling = SamplingParams(use_beam_search=True, n=n, **({"max_tokens": 3} | options))
    return GenerationRequest("r", PROMPT, sampling, **fields)


async def run(client: ScriptedClient, wanted: GenerationRequest, served: ServedModel) -> list[OutputDelta]:
    return await BeamRun(wanted, served, client).run()


def prompts(step: list[AddRequest]) -> list[list[int]]:
    return [unpack_int32(each.prompt_token_ids).tolist() for each in step]


async def test_a_step_asks_for_one_token_of_every_beam(served: ServedModel) -> None:
    client = ScriptedClient()
    wanted = request(priority=3, tenant="t", cache_salt="s", queue_timeout_s=5.0, ignore_eos=True)
    await run(client, wanted, served)
    assert [prompts(step) for step in client.seen] == [
        [PROMPT],
        [[*PROMPT, 60], [*PROMPT, 61]],
        [[*PROMPT, 60, 60], [*PROMPT, 60, 61]],
    ]
    for step in client.seen:
        for i, each in enumerate(step):
            assert (each.request_id, each.priority, each.tenant, each.cache_salt) == (f"r-{i}", 3, "t", "s")
            assert each.timeout_s == 0
            assert each.sampling == SequenceSampling(
                temperature=0, seed=0, max_tokens=1, ignore_eos=True, logprobs=2
            )
    # A search that has begun is not given up because a later step waits, or finds the queue full.
    assert {step[0].queue_timeout_s for step in client.seen} == {5.0}
    assert [step[0].continues for step in client.seen] == [False, True, True]
    handles = [each.handle for step in client.seen for each in step]
    assert len(set(handles)) == len(handles)
    assert not client.aborted


async def test_candidates_are_enough_for_every_end(served: ServedModel) -> None:
    client = ScriptedClient()
    await run(client, request(2, best_of=4, stop_token_ids=(2, 7, 9)), served)
    # Four beams, and EOS 2, 7, 9.
    assert {each.sampling.logprobs for step in client.seen for each in step} == {4 + 3}
    with pytest.raises(InvalidRequestError, match="at most 20 together, got 21") as caught:
        await run(client, request(2, best_of=4, stop_token_ids=tuple(range(100, 116))), served)
    assert caught.value.param == "stop_token_ids"


async def test_outputs_come_best_first_with_their_reasons(served: ServedModel) -> None:
    deltas = await run(ScriptedClient(), request(2, best_of=3, stop_token_ids=(61,)), served)
    # Of the first step's best three, 61 and EOS end: -2 and -3 per token; longer ones come to -1 and more.
    assert [(d.token_ids, d.finish_reason, d.stop_reason) for d in deltas] == [
        ([60, 60, 60], "length", None),
        ([60, 60, 61], "stop", 61),
    ]
    assert [delta.index for delta in deltas] == [0, 1]
    assert [delta.num_cached_tokens for delta in deltas] == [2, 2]
    decode = served.assets.tokenizer.decode
    assert [delta.text for delta in deltas] == [decode([60, 60, 60]), decode([60, 60])]


async def test_eos_goes_before_a_stop_token_of_the_same_id(served: ServedModel) -> None:
    options = {"best_of": 3, "max_tokens": 1, "stop_token_ids": (2,)}
    eos = (await run(ScriptedClient(), request(3, **options), served))[2]
    assert (eos.token_ids, eos.finish_reason, eos.stop_reason, eos.text) == ([2], "stop", None, "")
    stop = (await run(ScriptedClient(), request(3, ignore_eos=True, **options), served))[2]
    assert (stop.finish_reason, stop.stop_reason) == ("stop", 2)


async def test_the_token_that_ends_an_output_is_shown_when_asked_for(served: ServedModel) -> None:
    options = {"best_of": 2, "max_tokens": 1, "stop_token_ids": (60,)}
    hidden, shown = [
        (await run(ScriptedClient(), request(1, include_stop_str_in_output=shown, **options), served))[0]
        for shown in (False, True)
    ]
    assert (hidden.text, shown.text) == ("", served.assets.tokenizer.decode([60]))
    assert hidden.token_ids == shown.token_ids == [60]


async def test_logprobs_are_those_of_the_chosen_tokens(served: ServedModel) -> None:
    client = ScriptedClient()
    deltas = await run(
        client, request(2, max_tokens=2, logprobs=1, logprob_token_ids=(7,), ignore_eos=True), served
    )
    second = deltas[1].logprobs
    assert [(e.token_id, e.logprob, e.rank) for e in second] == [(60, -1.0, 1), (61, -2.0, 2)]
    assert [(e.top, e.asked) for e in second] == [([(60, -1.0)], [(7, -50.0)])] * 2
    wide = await run(client, request(2, max_tokens=2, logprobs=5, ignore_eos=True), served)
    assert [len(entry.top) for entry in wide[0].logprobs] == [5, 5]
    assert not (await run(client, request(2), served))[0].logprobs


async def test_the_first_step_scores_the_prompt(served: ServedModel) -> None:
    client = ScriptedClient()
    deltas = await run(client, request(2, prompt_logprobs=1), served)
    assert [each.sampling.prompt_logprobs for step in client.seen for each in step] == [1] + [None] * 4
    scores = deltas[0].prompt_logprobs
    assert scores is not None
    assert [None if entry is None else (entry.token_id, len(entry.top)) for entry in scores] == [
        None,
        (41, 1),
        (42, 1),
    ]
    assert deltas[1].prompt_logprobs is None


async def test_the_timeout_holds_for_the_whole_search(served: ServedModel) -> None:
    now_s = 100.0

    def slow(client: ScriptedClient, each: AddRequest) -> None:
        nonlocal now_s
        now_s += 2.0
        client.reply(each)

    client = ScriptedClient(slow)
    search = BeamRun(request(1, max_tokens=9, timeout_s=5.0), served, client, lambda: now_s)
    with pytest.raises(EngineRequestError) as caught:
        await search.run()
    assert (caught.value.code, caught.value.status) == ("timeout", 504)
    assert [step[0].timeout_s for step in client.seen] == [5.0, 3.0, 1.0]


def reject(client: ScriptedClient, each: AddRequest) -> None:
    client.session.receive(Rejected(each.handle, 429, "overloaded", "full", retry_after_s=3.0), 0.0)


def fail(client: ScriptedClient, each: AddRequest) -> None:
    error = Finished(each.handle, FinishReason.ERROR, error_code="numerical_error", error_status=500)
    client.session.receive(outputs([], [error]), 0.0)


def shut_down(client: ScriptedClient, each: AddRequest) -> None:
    client.session.receive(outputs([], [end(each.handle, FinishReason.ABORT)]), 0.0)


def lose(client: ScriptedClient, each: AddRequest) -> None:
    client.session.disconnected(0.0)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (reject, "overloaded"),
        (fail, "numerical_error"),
        (shut_down, EngineUnavailableError.code),
        (lose, EngineUnavailableError.code),
    ],
)
async def test_the_failure_of_one_beam_ends_the_search_and_the_others(
    served: ServedModel, failure: Answer, code: str
) -> None:
    def answer(client: ScriptedClient, each: AddRequest) -> None:
        if len(client.seen) < 2:
            client.reply(each)
        elif each is client.seen[-1][0]:
            failure(client, each)

    client = ScriptedClient(answer)
    with pytest.raises(SplitServeError) as caught:
        await run(client, request(2, ignore_eos=True), served)
    assert caught.value.code == code
    assert not client.session.sequences
    assert [len(step) for step in client.seen] == [1, 2]


async def test_an_engine_that_leaves_out_the_logprobs_breaks_the_protocol(served: ServedModel) -> None:
    def answer(client: ScriptedClient, each: AddRequest) -> None:
        client.session.receive(outputs([(each.handle, 60, 0)], [end(each.handle)]), 0.0)

    with pytest.raises(ProtocolError, match="logprobs of 0 tokens"):
        await run(ScriptedClient(answer), request(2), served)


async def test_leaving_aborts_the_beams_of_the_step(served: ServedModel) -> None:
    asked = asyncio.Event()

    def answer(client: ScriptedClient, each: AddRequest) -> None:
        if len(client.seen) < 2:
            client.reply(each)
        else:
            asked.set()

    client = ScriptedClient(answer)
    task = asyncio.create_task(run(client, request(2, ignore_eos=True), served))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.aborted == [each.handle for each in client.seen[1]]
