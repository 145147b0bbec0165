"""The requests of one prompt: one per completion, with what the engine has to know and no more."""

from __future__ import annotations

from dataclasses import replace

from splitserve.engine_core.ipc.codec import encode, frontend_decoder, unpack_int32
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.engine_core.sequence_sampling import MAX_SEED
from splitserve.frontend.engines.generation import GenerationRequest
from splitserve.frontend.engines.stream.split_request import split_request


def request(sampling: SamplingParams) -> GenerationRequest:
    return GenerationRequest("r", [3, 4], sampling, priority=2, tenant="t", cache_salt="s", timeout_s=9.0)


def test_n_sequences_are_n_requests_with_consecutive_seeds() -> None:
    sampling = SamplingParams(n=3, seed=MAX_SEED, stop=("x",), prompt_logprobs=1, logprobs=2, temperature=0.5)
    adds = split_request(request(sampling))
    assert [entry.sampling.seed for entry in adds] == [MAX_SEED, 0, 1]
    assert [entry.sampling.prompt_logprobs for entry in adds] == [1, None, None]
    assert {entry.sampling.temperature for entry in adds} == {0.5}
    assert {(a.priority, a.tenant, a.cache_salt, a.timeout_s) for a in adds} == {(2, "t", "s", 9.0)}
    assert unpack_int32(adds[0].prompt_token_ids).tolist() == [3, 4]
    assert len({entry.request_id for entry in adds}) == 3


def test_an_engine_takes_what_is_left_of_parameters_that_only_a_frontend_heeds() -> None:
    sampling = SamplingParams(
        n=2,
        best_of=2,
        stop=("x",),
        skip_special_tokens=False,
        include_stop_str_in_output=True,
        top_k=3,
        stop_token_ids=(4,),
        bad_word_token_ids=((5, 6),),
    )
    for single in split_request(request(sampling)):
        decoded = frontend_decoder.decode(encode(single))
        assert isinstance(decoded, AddRequest)
        assert decoded.sampling == single.sampling
        assert (decoded.sampling.top_k, decoded.sampling.stop_token_ids) == (3, (4,))
        assert decoded.sampling.bad_word_token_ids == ((5, 6),)


def test_the_queue_timeout_is_that_of_all_sequences() -> None:
    adds = split_request(replace(request(SamplingParams(n=3)), queue_timeout_s=5.0))
    assert [entry.queue_timeout_s for entry in adds] == [5.0] * 3


def test_a_seed_is_drawn_when_none_is_given() -> None:
    seeds = {split_request(request(SamplingParams()))[0].sampling.seed for _ in range(20)}
    assert len(seeds) == 20
    assert None not in seeds
