"""Beam search with the LLM class: over made-up tokens, and with weights against transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from splitserve import LLM, BeamSearchParams, SamplingParams
from splitserve.engine_core.errors import InvalidRequestError
from tests.checkpoints import CheckpointCache, CheckpointSpec

pytestmark = pytest.mark.system

SEARCH = SamplingParams(
    use_beam_search=True, n=3, best_of=4, max_tokens=9, logprobs=0, early_stopping="never"
)


def test_outputs_come_best_first_and_are_always_the_same(llm: LLM) -> None:
    prompts = [f"Hello {i}" for i in range(20)]
    outputs = llm.generate(prompts, SEARCH, use_tqdm=False)
    for output in outputs:
        rates = [(each.cumulative_logprob or 0.0) / len(each.token_ids) for each in output.outputs]
        assert rates == sorted(rates, reverse=True)
        assert len({tuple(each.token_ids) for each in output.outputs}) == 3
        assert [each.index for each in output.outputs] == [0, 1, 2]
        assert all([e.text == llm.get_tokenizer().decode(e.token_ids) for e in output.outputs])
    alone = llm.generate(prompts[7], SEARCH, use_tqdm=False)
    assert alone[0].outputs == outputs[7].outputs


def test_a_conversation_is_answered_by_a_search(llm: LLM) -> None:
    output = llm.chat([{"role": "user", "content": "Hello"}], SEARCH, use_tqdm=False)[0]
    assert [len(each.logprobs or []) for each in output.outputs] == [len(e.token_ids) for e in output.outputs]


def test_a_search_that_asks_for_more_than_the_context_is_cut(llm: LLM) -> None:
    room = llm._served.info.max_model_len - 4
    search = SamplingParams(use_beam_search=True, n=2, max_tokens=10**6, ignore_eos=True)
    output = llm.generate([[5] * room], search, use_tqdm=False)[0]
    assert [(len(each.token_ids), each.finish_reason) for each in output.outputs] == [(4, "length")] * 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"temperature": 0.5}, "temperature"),
        ({"bad_word_token_ids": ((1,),)}, "bad_word_token_ids"),
        ({"length_penalty": 11.0}, "length_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_token_ids": tuple(range(128)), "best_of": 16, "n": 16, "logprobs": 21}, "logprobs"),
    ],
)
def test_what_a_search_cannot_take_is_named(llm: LLM, fields: dict, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate("Hello", SamplingParams(use_beam_search=True, **fields), use_tqdm=False)
    assert caught.value.param == param


def test_a_search_with_every_end_there_may_be(llm: LLM) -> None:
    search = SamplingParams(
        use_beam_search=True, n=16, max_tokens=6, stop_token_ids=tuple(range(100, 228)), min_tokens=2
    )
    outputs = llm.generate("Hello", search, use_tqdm=False)[0].outputs
    assert len({tuple(each.token_ids) for each in outputs}) == 16
    assert min(len(each.token_ids) for each in outputs) > 2


def test_outputs_equal_those_of_transformers(checkpoints: CheckpointCache) -> None:
    directory = checkpoints.get(CheckpointSpec("llama"))
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    prompts = [[7, 8, 9], [20] * 17, [5, 300, 11, 12]]
    search = SamplingParams(use_beam_search=True, n=3, max_tokens=12, ignore_eos=True)
    with LLM(
        str(directory), dtype="float32", num_threads=1, num_blocks=64, max_num_seqs=4, use_tqdm=False
    ) as llm:
        outputs = llm.generate(prompts, search, use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        expected = theirs.generate(
            torch.tensor([prompt]),
            max_new_tokens=12,
            do_sample=False,
            num_beams=3,
            num_return_sequences=3,
            eos_token_id=None,
        )
        assert [each.token_ids for each in output.outputs] == expected[:, len(prompt) :].tolist()


def test_a_search_in_the_other_shape_finds_the_same(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=6, length_penalty=0.5)
    found = llm.beam_search(["Hello", "World"], params)
    outputs = llm.generate(["Hello", "World"], params.sampling_params(), use_tqdm=False)
    for search, output in zip(found, outputs, strict=True):
        tokens = [[*output.prompt_token_ids, *each.token_ids] for each in output.outputs]
        assert [each.tokens for each in search.sequences] == tokens
        assert [each.cum_logprob for each in search.sequences] == [
            each.cumulative_logprob for each in output.outputs
        ]
        assert [each.text for each in search.sequences] == [llm.get_tokenizer().decode(ids) for ids in tokens]


@pytest.mark.parametrize(
    ("changes", "param"), [({"beam_width": 0}, "beam_width"), ({"temperature": 0.5}, "temperature")]
)
def test_a_search_that_cannot_be_is_refused(llm: LLM, changes: dict, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.beam_search("Hello", BeamSearchParams(**({"beam_width": 2, "max_tokens": 4} | changes)))
    assert caught.value.param == param
