"""What a frontend may ask an engine for: a sequence, and nothing that a frontend has to do itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from splitserve.engine_core.errors import ProtocolError
from splitserve.engine_core.ipc.codec import encode, frontend_decoder
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.engine_core.structured_outputs import StructuredOutputs

OTHER = {
    "n": 2,
    "stop": ("x",),
    "skip_special_tokens": False,
    "include_stop_str_in_output": True,
    "bad_words": ("x",),
    "use_beam_search": True,
    "best_of": 2,
    "length_penalty": 2.0,
    "early_stopping": True,
    "detokenize": False,
    "structured_outputs": StructuredOutputs(regex="a"),
    "thinking_token_budget": 5,
}


def test_these_are_all_fields_that_only_a_frontend_heeds() -> None:
    own = set(SamplingParams.__struct_fields__) - set(SequenceSampling.__struct_fields__)
    assert own == OTHER.keys()


@pytest.mark.parametrize(("field", "value"), OTHER.items())
def test_what_only_a_frontend_heeds_is_no_message_of_one(field: str, value: Any) -> None:
    params = SamplingParams(**{field: value})
    with pytest.raises(ProtocolError, match=f"unknown field `{field}`"):
        frontend_decoder.decode(encode(AddRequest(1, "r", b"\0\0\0\0", params)))
    assert encode(params.sequence(0, None)) == encode(SequenceSampling(seed=0))


def test_a_sequence_has_the_values_of_all_fields_it_shares_with_the_parameters() -> None:
    values: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.4,
        "top_k": 3,
        "min_p": 0.1,
        "presence_penalty": 1.0,
        "frequency_penalty": 1.5,
        "repetition_penalty": 1.2,
        "seed": 5,
        "max_tokens": 9,
        "min_tokens": 2,
        "stop_token_ids": (1,),
        "ignore_eos": True,
        "logprobs": 2,
        "prompt_logprobs": 1,
        "logit_bias": {1: 2.0},
        "allowed_token_ids": (1, 2),
        "bad_word_token_ids": ((1, 2),),
        "logprob_token_ids": (4,),
        "repetition_detection": {"max_pattern_size": 4},
        "grammar": 'start: "a"',
    }
    assert values.keys() == set(SequenceSampling.__struct_fields__)
    params = msgspec.convert(values | {"n": 2}, SamplingParams)
    sequence = params.sequence(6, None)
    assert sequence == msgspec.convert(values | {"seed": 6, "prompt_logprobs": None}, SequenceSampling)
