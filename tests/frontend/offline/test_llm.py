"""The offline LLM class over a real engine-core with made-up tokens."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from splitserve import LLM, RepetitionDetection, SamplingParams, StructuredOutputs
from splitserve.engine_core.errors import (
    ConfigError,
    ContextLengthError,
    EngineUnavailableError,
    InvalidRequestError,
    ModelLoadError,
    SplitServeError,
)
from splitserve.frontend.offline.jobs import TokenizationKwargs
from splitserve.frontend.offline.outputs import Logprob
from splitserve.frontend.offline.params import check_params

pytestmark = pytest.mark.system

GREEDY = SamplingParams(temperature=0, max_tokens=12, seed=1)


def test_outputs_come_in_the_order_of_prompts(llm: LLM) -> None:
    prompts = [f"Hello {i}" for i in range(300)]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=5, seed=1), use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    assert all(output.finished and len(output.outputs) == 1 for output in outputs)
    assert [llm.get_tokenizer().decode(output.prompt_token_ids) for output in outputs] == prompts
    assert len({output.request_id for output in outputs}) == 300


def test_every_form_of_prompt_is_taken(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("Hello")
    one = llm.generate("Hello", GREEDY, use_tqdm=False)[0]
    forms = ["Hello", ids, {"prompt": "Hello"}, {"prompt_token_ids": ids}]
    outputs = llm.generate(forms, GREEDY, use_tqdm=False)  # type: ignore[arg-type]
    outputs += llm.generate(ids, GREEDY, use_tqdm=False)
    assert [output.outputs for output in outputs] == [one.outputs] * 5
    assert [output.prompt for output in outputs] == ["Hello", None, "Hello", None, None]
    assert llm.generate([], GREEDY, use_tqdm=False) == []


@pytest.mark.parametrize(
    "prompts",
    [
        None,
        5,
        b"Hello",
        [None],
        [1, "a"],
        [1.5],
        [[1, None]],
        {"prompt": 5},
        {"prompt_token_ids": [1, "x"]},
        {},
    ],
    ids=repr,
)
def test_what_is_no_prompt_is_refused_in_words(llm: LLM, prompts: object) -> None:
    with pytest.raises(InvalidRequestError, match="prompt"):
        llm.generate(prompts, GREEDY, use_tqdm=False)  # type: ignore[arg-type]


def test_token_ids_may_be_integers_of_any_library(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("Hello world")
    plain = llm.generate(ids, GREEDY, use_tqdm=False)[0]
    for others in (np.array(ids), list(np.array(ids)), [np.array(ids)], {"prompt_token_ids": np.array(ids)}):
        output = llm.generate(others, GREEDY, use_tqdm=False)[0]  # type: ignore[arg-type]
        assert (output.outputs, output.prompt_token_ids) == (plain.outputs, ids)


@pytest.mark.parametrize(
    "messages",
    [None, 5, "Hello", {"role": "user", "content": "Hello"}, ["Hello"], [{"role": "user"}, 5], [[5]]],
    ids=repr,
)
def test_what_are_no_messages_is_refused_in_words(llm: LLM, messages: object) -> None:
    with pytest.raises(InvalidRequestError, match="messages must be a list of messages"):
        llm.chat(messages, GREEDY, use_tqdm=False)  # type: ignore[arg-type]


def test_a_message_with_a_key_that_is_no_string_is_refused_in_words(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"messages\[0\]: a key must be a string, got int"):
        llm.chat([{"role": "user", 5: 6}], GREEDY, use_tqdm=False)  # type: ignore[arg-type]


def test_template_variables_that_are_none_are_refused_in_words(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="chat_template_kwargs must be an object of template var"):
        llm.chat([], GREEDY, use_tqdm=False, chat_template_kwargs=5)  # type: ignore[arg-type]


def test_a_field_of_a_message_that_nobody_knows_is_named_once_in_the_log(
    llm: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        message: dict[str, Any] = {"role": "user", "content": "x", "wieght": 1}
        llm.chat([message], GREEDY, use_tqdm=False)
    lines = [record.message for record in caplog.records if "unknown_field" in record.message]
    assert lines == ["unknown_field_ignored field=messages[].wieght"]


@pytest.mark.parametrize("given", [{"max_tokens": 2}, [5], 5, "greedy"], ids=repr)
def test_what_are_no_parameters_is_refused_in_words(llm: LLM, given: object) -> None:
    with pytest.raises(InvalidRequestError, match="sampling_params must be a SamplingParams"):
        llm.generate(["Hello"], given, use_tqdm=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["stop", "stop_token_ids"])
def test_a_parameter_that_is_no_list_is_refused_by_name(llm: LLM, field: str) -> None:
    params = SamplingParams(**{field: 5})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=f"^{field}: expected an array.*, got int$") as caught:
        llm.generate("Hello", params, use_tqdm=False)
    assert caught.value.param == field


def test_parameters_may_differ_per_prompt(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (1, 5, 3)]
    outputs = llm.generate(["a", "b", "c"], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 5, 3]
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}
    with pytest.raises(InvalidRequestError, match="3 prompts require one"):
        llm.generate(["a", "b", "c"], params[:2], use_tqdm=False)


def test_defaults_come_from_the_checkpoint(llm: LLM) -> None:
    defaults = llm.get_default_sampling_params()
    assert (defaults.temperature, defaults.top_k, defaults.max_tokens) == (0.25, 7, 16)
    assert len(llm.generate("Hello", use_tqdm=False)[0].outputs[0].token_ids) <= 16


def test_n_completions_differ_and_a_seed_repeats_them(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=7, max_tokens=8, logprobs=2, ignore_eos=True)
    first, second = (llm.generate("Hello", params, use_tqdm=False)[0] for _ in range(2))
    assert first.outputs == second.outputs
    assert [completion.index for completion in first.outputs] == [0, 1, 2]
    assert len({tuple(completion.token_ids) for completion in first.outputs}) == 3


def test_logprobs_have_the_shape_of_vllm(llm: LLM) -> None:
    params = SamplingParams(max_tokens=4, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    output = llm.generate("Hello world", params, use_tqdm=False)[0]
    completion = output.outputs[0]
    assert completion.logprobs is not None
    assert len(completion.logprobs) == 4
    for token_id, position in zip(completion.token_ids, completion.logprobs, strict=True):
        assert isinstance(position[token_id], Logprob)
        assert position[token_id].decoded_token == llm.get_tokenizer().token_text(token_id).text
    chosen = [
        position[i].logprob for i, position in zip(completion.token_ids, completion.logprobs, strict=True)
    ]
    assert completion.cumulative_logprob == pytest.approx(sum(chosen))
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)


def test_ids_asked_for_have_no_rank_and_imply_logprobs(llm: LLM) -> None:
    params = SamplingParams(max_tokens=3, logprob_token_ids=(5, 6), ignore_eos=True)
    completion = llm.generate("Hello", params, use_tqdm=False)[0].outputs[0]
    assert completion.logprobs is not None
    for token_id, position in zip(completion.token_ids, completion.logprobs, strict=True):
        assert set(position) == {token_id, 5, 6}
        assert position[5].rank is None or token_id == 5


def test_lists_are_taken_where_tuples_are_kept(llm: LLM) -> None:
    params = SamplingParams(
        max_tokens=3,
        allowed_token_ids=[1, 2],  # type: ignore[arg-type]
        bad_words=["Hello", "x"],  # type: ignore[arg-type]
        bad_word_token_ids=[[4, 5]],  # type: ignore[arg-type]
        # Neither of them can end three tokens, whatever is drawn.
        repetition_detection=RepetitionDetection(4, min_count=4),
        ignore_eos=True,
    )
    assert llm.generate("Hello", params, use_tqdm=False)[0].outputs[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": ()}, "allowed_token_ids"),
        ({"allowed_token_ids": (10**9,)}, "allowed_token_ids"),
        ({"bad_words": ("",)}, "bad_words[0]"),
        ({"bad_word_token_ids": ((),)}, "bad_word_token_ids[0]"),
        ({"bad_word_token_ids": ((1,) * 513,)}, "bad_word_token_ids[0]"),
        ({"bad_word_token_ids": ((1,),) * 257}, "bad_word_token_ids"),
        ({"bad_word_token_ids": ((10**9,),)}, "bad_word_token_ids"),
        ({"logprob_token_ids": (1,) * 129}, "logprob_token_ids"),
        ({"repetition_detection": RepetitionDetection(0)}, "repetition_detection.max_pattern_size"),
        ({"repetition_detection": RepetitionDetection("a")}, "repetition_detection.max_pattern_size"),  # type: ignore[arg-type]
    ],
)
def test_parameters_out_of_range_are_named(llm: LLM, fields: dict, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate("Hello", SamplingParams(**fields), use_tqdm=False)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"json": {"properties": {"x": {"uniqueItems": True}}}}, "structured_outputs.json"),
        ({"regex": "("}, "structured_outputs.regex"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"regex": 3}, "structured_outputs.regex"),
        ({}, "structured_outputs"),
    ],
    ids=str,
)
def test_structured_outputs_that_are_wrong_are_named(llm: LLM, fields: dict, param: str) -> None:
    params = SamplingParams(max_tokens=4, structured_outputs=StructuredOutputs(**fields))
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate("Hello", params, use_tqdm=False)
    assert caught.value.param == param


def test_a_budget_of_reasoning_is_for_models_that_write_some(llm: LLM) -> None:
    params = SamplingParams(max_tokens=4, thinking_token_budget=2)
    with pytest.raises(InvalidRequestError, match=r"use LLM\.chat") as caught:
        llm.generate("x", params, use_tqdm=False)
    assert caught.value.param == "thinking_token_budget"
    with pytest.raises(InvalidRequestError, match="writes no reasoning") as caught:
        llm.chat([{"role": "user", "content": "x"}], params, use_tqdm=False)
    assert caught.value.param == "thinking_token_budget"
    with pytest.raises(InvalidRequestError, match="from 0 to"):
        llm.generate("x", SamplingParams(thinking_token_budget=-1), use_tqdm=False)


def test_a_list_of_choices_is_taken() -> None:
    made = msgspec.structs.replace(StructuredOutputs(), choice=["yes", "no"])
    checked = check_params(SamplingParams(structured_outputs=made), 100, 20)
    assert checked.structured_outputs == StructuredOutputs(choice=("yes", "no"))


def test_stop_strings_cut_the_text(llm: LLM) -> None:
    params = SamplingParams(max_tokens=40, seed=3, ignore_eos=True)
    text = llm.generate("Hello", params, use_tqdm=False)[0].outputs[0].text
    stop = text[10:12]
    for given in (stop, [stop], (stop,)):
        stopped = SamplingParams(max_tokens=40, seed=3, ignore_eos=True, stop=given)  # type: ignore[arg-type]
        completion = llm.generate("Hello", stopped, use_tqdm=False)[0].outputs[0]
        assert completion.text == text[: text.index(stop)]
        assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)


def test_chat_renders_one_or_many_conversations(llm: LLM) -> None:
    chat = [{"role": "user", "content": "Hello <|im_end|>"}]
    one = llm.chat(chat, GREEDY, use_tqdm=False)
    many = llm.chat([chat, chat], GREEDY, use_tqdm=False)
    assert one[0].prompt == "<|im_start|>user\nHello <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    end_id = llm.get_tokenizer().special_tokens["<|im_end|>"]
    assert one[0].prompt_token_ids.count(end_id) == 1
    assert [output.outputs for output in many] == [one[0].outputs] * 2


def test_prompts_of_the_script_may_hold_control_tokens(llm: LLM) -> None:
    output = llm.generate("<|im_start|>user", GREEDY, use_tqdm=False)[0]
    assert output.prompt_token_ids[0] == llm.get_tokenizer().special_tokens["<|im_start|>"]


def test_max_tokens_is_lowered_to_the_context(llm: LLM) -> None:
    output = llm.generate([[5] * 500], SamplingParams(max_tokens=10**6, ignore_eos=True), use_tqdm=False)[0]
    assert len(output.outputs[0].token_ids) == 12
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "params", "kind", "words"),
    [
        ([[]], GREEDY, InvalidRequestError, "at least one token"),
        ([[5] * 512], GREEDY, ContextLengthError, "512"),
        ([[5, 10**6]], GREEDY, InvalidRequestError, "token ids"),
        ([[5, 2**40]], GREEDY, InvalidRequestError, "token ids"),
        ("x", SamplingParams(stop_token_ids=(10**6,)), InvalidRequestError, "stop_token_ids: token ids must"),
        ("x", SamplingParams(temperature=-1), InvalidRequestError, "temperature"),
        ("x", SamplingParams(max_tokens="many"), InvalidRequestError, "max_tokens"),  # type: ignore[arg-type]
        ([{"text": "x"}], GREEDY, InvalidRequestError, "prompt_token_ids"),
        ("\ud800", GREEDY, InvalidRequestError, "surrogate"),
    ],
)
def test_a_wrong_prompt_is_named_and_the_next_call_works(
    llm: LLM, prompt: object, params: SamplingParams, kind: type[Exception], words: str
) -> None:
    good = [[5, 6, 7]] * 5
    prompts = [*good, *prompt] if isinstance(prompt, list) else [*good, prompt]
    with pytest.raises(kind, match=words):
        llm.generate(prompts, params, use_tqdm=False)  # type: ignore[arg-type]
    assert len(llm.generate(good, GREEDY, use_tqdm=False)) == 5


def test_several_threads_may_generate(llm: LLM) -> None:
    results: dict[int, list] = {}

    def work(number: int) -> None:
        outputs = llm.generate([[10 + number]] * 20, GREEDY, use_tqdm=False)
        results[number] = [output.prompt_token_ids for output in outputs]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [[10 + number]] * 20 for number in range(4)}


def test_the_bar_tells_tokens_per_second(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate(["Hello"] * 3, GREEDY)
    shown = capfd.readouterr().err
    assert "3/3" in shown
    assert "tok/s" in shown


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="nothing-here"):
        LLM(str(tmp_path / "nothing-here"), executor="simulated", use_tqdm=False)


def test_a_model_at_fault_is_named_before_it_is_loaded(tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=r"vocab_size must be an integer from 1 to .*, got 0"):
        LLM(str(tmp_path), use_tqdm=False)


def test_a_wrong_argument_is_named(model: Path) -> None:
    with pytest.raises(SplitServeError, match="block-size"):
        LLM(str(model), executor="simulated", block_size=0, use_tqdm=False)
    with pytest.raises(ConfigError, match="kv-offload-gb"):
        LLM(str(model), executor="simulated", kv_offload_gb=-1.0, use_tqdm=False)


def test_an_error_is_told_once(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SplitServeError, match="block-size"):
        LLM(str(model), executor="simulated", block_size=0, use_tqdm=False)
    assert "block-size" not in capfd.readouterr().err


@pytest.mark.parametrize("value", [-1, 161])
def test_the_bound_of_logprobs_has_a_range(model: Path, value: int) -> None:
    with pytest.raises(ConfigError, match="max_logprobs must be from 0 to 160"):
        LLM(str(model), executor="simulated", max_logprobs=value, use_tqdm=False)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda llm: LLM("x", tensor_paralel_size=2),
            "LLM() has no argument 'tensor_paralel_size'; did you mean 'tensor_parallel_size'?",
        ),
        (
            lambda llm: llm.generate("x", sampling_parms=GREEDY),
            "LLM.generate() has no argument 'sampling_parms'; did you mean 'sampling_params'?",
        ),
        (
            lambda llm: llm.chat([], add_generation_promt=False),
            "LLM.chat() has no argument 'add_generation_promt'; did you mean 'add_generation_prompt'?",
        ),
        (
            lambda llm: SamplingParams(temprature=0),  # type: ignore[call-arg]
            "SamplingParams() has no argument 'temprature'; did you mean 'temperature'?",
        ),
    ],
)
def test_a_wrong_keyword_names_the_near_one(llm: LLM, call: Callable[[LLM], object], words: str) -> None:
    with pytest.raises(TypeError) as caught:
        call(llm)
    assert str(caught.value) == words


def test_a_keyword_near_to_nothing_names_all(llm: LLM) -> None:
    with pytest.raises(TypeError, match=r"no argument 'zzz'; it takes lora, priority, prompts, "):
        llm.generate("x", zzz=1)  # type: ignore[call-arg]


def test_without_detokenizing_there_is_no_text(llm: LLM) -> None:
    plain = SamplingParams(max_tokens=6, seed=1, logprobs=1, prompt_logprobs=1, ignore_eos=True)
    silent = msgspec.structs.replace(plain, detokenize=False)
    text, none = (llm.generate("Hello", params, use_tqdm=False)[0] for params in (plain, silent))
    assert (text.outputs[0].text != "", none.outputs[0].text) == (True, "")
    assert none.outputs[0].token_ids == text.outputs[0].token_ids
    assert none.outputs[0].logprobs is not None
    assert none.prompt_logprobs is not None
    names = [each for position in none.outputs[0].logprobs for each in position.values()]
    names += [each for position in none.prompt_logprobs[1:] for each in (position or {}).values()]
    assert {each.decoded_token for each in names} == {None}


def test_beams_need_no_text_either(llm: LLM) -> None:
    params = SamplingParams(use_beam_search=True, n=2, max_tokens=3, detokenize=False)
    outputs = llm.generate("Hello", params, use_tqdm=False)[0].outputs
    assert [(output.text, len(output.token_ids) > 0) for output in outputs] == [("", True)] * 2


def test_stop_strings_need_text(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="stop requires detokenize"):
        llm.generate("Hello", SamplingParams(stop=("x",), detokenize=False), use_tqdm=False)


@pytest.mark.parametrize("priority", [None, 5, [1, 1 - 2**31]])
def test_prompts_may_have_priorities(llm: LLM, priority: int | list[int] | None) -> None:
    assert len(llm.generate(["a", "b"], GREEDY, use_tqdm=False, priority=priority)) == 2


@pytest.mark.parametrize(
    ("priority", "words"),
    [([1], "2 prompts require one priority each"), (2**31, "from -2147483647 to"), (True, "got True")],
)
def test_a_wrong_priority_is_named(llm: LLM, priority: int | list[int], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        llm.generate(["a", "b"], GREEDY, use_tqdm=False, priority=priority)


def test_prompts_are_truncated_when_asked(llm: LLM) -> None:
    long = [5] * 300 + [6] * 300
    cases: list[tuple[TokenizationKwargs, list[int]]] = [
        ({"truncate_prompt_tokens": 4}, [6] * 4),
        ({"truncate_prompt_tokens": 4, "truncation_side": "right"}, [5] * 4),
        ({"truncate_prompt_tokens": -1}, long[-(512 - 12) :]),
    ]
    for kwargs, expected in cases:
        output = llm.generate(long, GREEDY, use_tqdm=False, tokenization_kwargs=kwargs)[0]
        assert output.prompt_token_ids == expected


def test_a_truncated_text_or_chat_is_no_text_any_more(llm: LLM) -> None:
    kwargs: TokenizationKwargs = {"truncate_prompt_tokens": 3}
    chat = [{"role": "user", "content": "Hello " * 2000}]
    outputs = llm.generate("Hello " * 2000, GREEDY, use_tqdm=False, tokenization_kwargs=kwargs)
    outputs += llm.chat(chat, GREEDY, use_tqdm=False, tokenization_kwargs=kwargs)
    assert [(output.prompt, len(output.prompt_token_ids)) for output in outputs] == [(None, 3)] * 2


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"truncate_prompt_tokens": 0}, "from 1 to 512"),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"max_length": 5}, "max_length; it takes truncate_prompt_tokens, truncation_side"),
    ],
)
def test_wrong_tokenization_kwargs_are_named(llm: LLM, kwargs: dict, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        llm.generate("Hello", GREEDY, use_tqdm=False, tokenization_kwargs=kwargs)  # type: ignore[arg-type]


def test_outputs_tell_their_times_when_asked(model: Path, llm: LLM) -> None:
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    assert llm.generate("Hello", params, use_tqdm=False)[0].metrics is None
    with LLM(
        str(model), executor="simulated", use_tqdm=False, enable_per_request_metrics=True, max_logprobs=160
    ) as timed:
        metrics = timed.generate("Hello", params, use_tqdm=False)[0].metrics
        two = timed.generate("Hello", msgspec.structs.replace(params, n=2), use_tqdm=False)[0]
        many = timed.generate("Hello", msgspec.structs.replace(params, logprobs=160), use_tqdm=False)[0]
    assert metrics is not None
    assert all(value is not None and value >= 0 for value in msgspec.structs.astuple(metrics))
    assert two.metrics is None
    assert many.outputs[0].logprobs is not None
    assert len(many.outputs[0].logprobs[0]) >= 160


def test_a_closed_llm_says_so(model: Path) -> None:
    llm = LLM(str(model), executor="simulated", use_tqdm=False)
    llm.close()
    llm.close()
    with pytest.raises(ConfigError, match="closed"):
        llm.generate("x", GREEDY)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, splitserve\n"
        "assert not {'zmq', 'tokenizers', 'jinja2', 'msgspec', 'asyncio'} & set(sys.modules)\n"
        "from splitserve import LLM, SamplingParams\n"
        "assert LLM.__module__ == 'splitserve.frontend.offline.llm'\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


def test_an_unavailable_engine_is_not_waited_for_for_ever(model: Path) -> None:
    with pytest.raises(EngineUnavailableError, match="no engine is ready"):
        LLM(str(model), executor="simulated", use_tqdm=False, startup_timeout_s=0.0, max_num_seqs=3)


def test_the_prefix_cache_can_be_reset(llm: LLM) -> None:
    prompt = "one two three four five six seven " * 10
    llm.generate(prompt, GREEDY, use_tqdm=False)
    assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].num_cached_tokens > 0
    assert llm.reset_prefix_cache()
    assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].num_cached_tokens == 0
