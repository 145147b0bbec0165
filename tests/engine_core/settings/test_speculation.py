"""--speculate and --speculative-config say the same, and what is not built is refused by name."""

from __future__ import annotations

import math

import msgspec
import pytest

from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.setting import Value
from splitserve.engine_core.settings.speculation import (
    Speculation,
    SuffixRules,
    parse_speculation,
    without_model,
)
from splitserve.frontend.offline.engine_keywords import engine_keywords, engine_words

DEFAULT = Speculation(("ngram",), num_speculative_tokens=4, prompt_lookup_min=2, prompt_lookup_max=5)


@pytest.mark.parametrize(
    ("speculate", "text", "expected"),
    [
        ("auto", "", None),
        ("none", "", None),
        ("none", '{"method": "ngram"}', None),
        ("ngram", "", DEFAULT),
        ("auto", '{"method": "ngram"}', DEFAULT),
        ("auto", '{"method": ["ngram"]}', DEFAULT),
        ("ngram", '{"num_speculative_tokens": 8}', Speculation(("ngram",), 8, 2, 5)),
        # No more than leaves room for what has to agree.
        (
            "suffix",
            '{"suffix_decoding_max_tree_depth": 8}',
            Speculation(("suffix",), 6, 2, 5, suffixes=SuffixRules(max_depth=8)),
        ),
        ("auto", '{"method": "ngram", "prompt_lookup_max": 1}', Speculation(("ngram",), 4, 1, 1)),
        ("auto", '{"method": "ngram", "prompt_lookup_min": 7}', Speculation(("ngram",), 4, 7, 7)),
        (
            "ngram",
            '{"method": "ngram", "num_speculative_tokens": 1, "prompt_lookup_min": 3}',
            Speculation(("ngram",), 1, 3, 5),
        ),
    ],
)
def test_both_flags_say_how_tokens_are_drafted(
    speculate: str, text: str, expected: Speculation | None
) -> None:
    assert parse_speculation(speculate, text) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ngram", "must be a JSON object with the fields method, num_speculative_tokens"),
        ("[]", "must be a JSON object"),
        ("{}", "must name a method"),
        (
            '{"method": "eagle"}',
            "one of ngram, suffix, grammar, prediction, draft_model, eagle3, mtp, got 'eagle': "
            "--speculate eagle is eagle3 here",
        ),
        ('{"method": ["ngram", "ngram"]}', "method names one of ngram, ngram twice"),
        ('{"method": []}', "must name a method"),
        (
            '{"method": "ngram", "draft_tensor_parallel_size": 1}',
            "unknown field `draft_tensor_parallel_size`",
        ),
        ('{"method": "ngram", "num_speculative_tokens": 9}', "num_speculative_tokens must be from 1 to 8"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "num_speculative_tokens must be from 1 to 8"),
        ('{"method": "ngram", "num_speculative_tokens": true}', "Expected `int | null`"),
        ('{"method": "ngram", "prompt_lookup_max": 17}', "prompt_lookup_max must be from 1 to 16"),
        ('{"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 3}', "prompt_lookup_min"),
        (
            '{"method": "suffix", "num_speculative_tokens": 8, "suffix_decoding_max_tree_depth": 9}',
            "suffix_decoding_max_tree_depth must be from 10 to 64, got 9",
        ),
        ('{"method": "suffix", "suffix_decoding_max_tree_depth": 2}', "must be from 3 to 64, got 2"),
        ('{"method":' * 2000, "must be a JSON object"),
    ],
)
def test_what_is_wrong_or_not_built_is_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match="--speculative-config") as refused:
        parse_speculation("auto", text)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("speculate", "text", "model"),
    [
        ("draft", "", "org/small"),
        ("auto", "", "org/small"),
        ("auto", '{"method": "draft_model", "model": "org/small"}', ""),
        ("auto", '{"model": "org/small"}', "org/small"),
        ("draft", '{"num_speculative_tokens": 4, "method": "draft_model"}', "org/small"),
    ],
)
def test_a_draft_model_is_named_by_a_flag_or_in_the_object(speculate: str, text: str, model: str) -> None:
    speculation = parse_speculation(speculate, text, model)
    assert speculation is not None
    assert (speculation.methods, speculation.model) == (("draft_model",), "org/small")
    assert speculation.num_speculative_tokens == 4
    # What the engine makes of it, once it knows where the model is.
    assert parse_speculation(speculate, without_model(text), "/small") == msgspec.structs.replace(
        speculation, model="/small"
    )


@pytest.mark.parametrize(
    ("speculate", "text"),
    [("eagle", ""), ("auto", '{"method": "eagle3"}'), ("eagle", '{"num_speculative_tokens": 4}')],
)
def test_a_head_is_named_likewise(speculate: str, text: str) -> None:
    speculation = parse_speculation(speculate, text, "org/head")
    assert speculation is not None
    assert (speculation.methods, speculation.model) == (("eagle3",), "org/head")
    assert speculation.model_method == "eagle3"


def test_a_layer_of_the_model_itself_needs_no_other() -> None:
    speculation = parse_speculation("mtp", '{"num_speculative_tokens": 1}')
    assert speculation is not None
    assert (speculation.methods, speculation.model, speculation.model_method) == (("mtp",), "", "mtp")


@pytest.mark.parametrize(
    ("speculate", "text", "model", "problem"),
    [
        ("draft", "", "", "the method draft_model needs a model, such as --speculative-model DIR"),
        ("ngram", "", "a", "names the model of the method draft_model or eagle3, not of ngram"),
        ("eagle", "", "", "the method eagle3 needs a model, such as --speculative-model DIR"),
        ("eagle", '{"prompt_lookup_max": 3}', "a", "a field of the method ngram, not of eagle3"),
        ("auto", '{"method": ["eagle3", "draft_model"]}', "a", "names eagle3 and draft_model, of which one"),
        ("mtp", "", "a", "names the model of the method draft_model or eagle3, not of mtp"),
        ("mtp", '{"prompt_lookup_max": 3}', "", "a field of the method ngram, not of mtp"),
        ("auto", '{"method": ["mtp", "eagle3"]}', "a", "names mtp and eagle3, of which one"),
        ("auto", '{"method": "ngram", "model": "a"}', "", "not of ngram"),
        (
            "auto",
            '{"model": "a"}',
            "b",
            "--speculative-model b contradicts --speculative-config, which says a",
        ),
        ("ngram", '{"method": "draft_model"}', "a", "--speculate ngram contradicts --speculative-config"),
        ("draft", '{"prompt_lookup_max": 3}', "a", "prompt_lookup_max is a field of the method ngram"),
        ("ngram", '{"quantization": "int4"}', "", "of the method draft_model or eagle3 or mtp, not of ngram"),
        ("draft", '{"quantization": "int5"}', "a", "quantization must be one of none, int8, int4, w8a8, got"),
    ],
)
def test_a_draft_model_that_is_missing_or_useless_is_named(
    speculate: str, text: str, model: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_speculation(speculate, text, model)


@pytest.mark.parametrize("quantization", ["none", "int8", "int4", "w8a8"])
def test_what_drafts_may_have_a_quantization_of_its_own(quantization: str) -> None:
    speculation = parse_speculation("draft", f'{{"quantization": "{quantization}"}}', "a")
    assert speculation is not None
    assert speculation.quantization == quantization


def test_a_word_that_contradicts_the_object_is_found_before_anything_is_loaded() -> None:
    text = '{"method": "suffix"}'
    config = EngineConfig(listen="ipc:///tmp/s/e", speculate="ngram", speculative_config=text)
    with pytest.raises(ConfigError, match="--speculate ngram contradicts"):
        config.validate()


def test_scripts_may_give_a_dict() -> None:
    words = engine_words(
        engine_keywords(), {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    )
    assert words == ['--speculative-config={"method": "ngram", "num_speculative_tokens": 3}']


@pytest.mark.parametrize("value", [math.nan, math.inf, {1, 2}, object()])
def test_a_dict_that_is_no_json_is_refused_by_the_keywords_name(value: Value) -> None:
    with pytest.raises(ConfigError, match="speculative_config must be a dict that can be written as JSON"):
        engine_words(engine_keywords(), {"speculative_config": {"num_speculative_tokens": value}})


@pytest.mark.parametrize("settings", [{"speculate": "ngram"}, {"speculative_config": '{"method": "suffix"}'}])
def test_made_up_workers_draft_nothing(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"--speculate, .* must be left out with --executor simulated"):
        EngineConfig(executor="simulated", **settings).validate()  # type: ignore[arg-type]
    EngineConfig(executor="simulated").validate()


def test_none_is_the_default_as_in_vllm() -> None:
    given = {"speculate": "ngram", "speculative_config": None, "speculative_model": None, "lora": None}
    assert engine_words(engine_keywords(), {**given, "enforce_eager": None}) == ["--speculate=ngram"]


@pytest.mark.parametrize("keyword", ["speculate", "speculative_config"])
@pytest.mark.parametrize("value", [["ngram"], ("ngram", "suffix"), []])
def test_several_values_for_one_are_refused_by_the_keywords_name(keyword: str, value: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"{keyword} takes one value, got "):
        engine_words(engine_keywords(), {keyword: value})


def test_none_takes_back_what_a_file_of_settings_says() -> None:
    config = EngineConfig(speculate="none", speculative_model="a", speculative_config='{"method": "eagle3"}')
    assert config.speculation is None
    # What is no object is refused all the same.
    with pytest.raises(ConfigError, match="must be a JSON object"):
        EngineConfig(listen="ipc:///tmp/s/e", speculate="none", speculative_config="ngram").validate()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"task": "embed"}, "--task embed makes no text to draft"),
        ({"task": "score"}, "--task score makes no text to draft"),
        ({"attention_backend": "torch"}, "not with --attention-backend torch"),
        ({"attention_backend": "flash_attn"}, "not with --attention-backend flash_attn"),
    ],
)
def test_drafts_of_what_cannot_draft_are_refused_at_once(settings: dict[str, str], problem: str) -> None:
    plain = EngineConfig(listen="ipc:///tmp/s/e", **settings)  # type: ignore[arg-type]
    plain.validate()
    with pytest.raises(ConfigError, match=problem):
        msgspec.structs.replace(plain, speculate="ngram").validate()
