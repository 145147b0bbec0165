"""Every dataset has the requests that its flags ask for, and the same ones for the same seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from splitserve.client.bench.datasets.dataset import make_dataset
from splitserve.client.bench.datasets.sample import Conversation, Sample
from splitserve.client.bench.datasets.settings import DatasetSettings
from splitserve.client.bench.datasets.token_texts import load_tokenizer
from splitserve.engine_core.checkpoint.source import DEMO_MODEL
from splitserve.engine_core.errors import ConfigError

TOKENIZER = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))


def made(**settings: object) -> list[Conversation]:
    given = DatasetSettings(**settings)  # type: ignore[arg-type]
    given.validate()
    return make_dataset(given, "")


def samples(conversations: list[Conversation]) -> list[Sample]:
    return [sample for turns in conversations for sample in turns]


def num_tokens(sample: Sample) -> int:
    assert isinstance(sample.prompt, str)
    return len(TOKENIZER.encode(sample.prompt, add_special_tokens=False).ids)


def test_random_texts_have_exactly_as_many_tokens_as_asked_for() -> None:
    found = samples(made(num_prompts=20, random_input_len=100, random_output_len=7, random_prefix_len=30))
    assert [num_tokens(each) for each in found] == [130] * 20
    assert {each.num_prompt_tokens for each in found} == {130}
    assert {each.max_tokens for each in found} == {7}
    assert len({each.prompt for each in found}) == 20
    begin = str(found[0].prompt)[:40]
    assert all(str(each.prompt).startswith(begin) for each in found)


def test_lengths_vary_within_the_ratio_around_the_mean() -> None:
    found = samples(made(num_prompts=50, input_len=100, output_len=50, random_range_ratio=0.5))
    lengths = [each.num_prompt_tokens for each in found]
    assert 50 <= min(lengths) < 80
    assert 120 < max(lengths) <= 150
    assert all(25 <= each.max_tokens <= 75 for each in found)


def test_the_same_seed_makes_the_same_requests_and_another_others() -> None:
    first, again, other = (made(num_prompts=3, random_input_len=20, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_prefixes_are_shared_by_as_many_prompts_as_there_are_for_each() -> None:
    found = samples(
        made(
            dataset_name="prefix_repetition",
            num_prompts=12,
            prefix_repetition_num_prefixes=3,
            prefix_repetition_prefix_len=40,
            prefix_repetition_suffix_len=10,
        )
    )
    begins = [str(each.prompt)[:30] for each in found]
    assert sorted(begins.count(begin) for begin in set(begins)) == [4, 4, 4]
    assert {num_tokens(each) for each in found} == {50}


def test_conversations_have_their_turns_and_all_questions_together_are_as_many_as_asked_for() -> None:
    found = made(dataset_name="multi_turn", num_prompts=10, multi_turn_num_turns=4, random_input_len=5)
    assert [len(turns) for turns in found] == [4, 4, 2]


def test_sharegpt_takes_first_questions_and_asks_for_as_many_tokens_as_the_answer_has(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    good = {
        "conversations": [{"value": "How are the flowers today?"}, {"value": "They are fine, thank you."}]
    }
    short = {"conversations": [{"value": "a"}, {"value": "b"}]}
    path.write_text(json.dumps([short, good, {"conversations": []}]))
    found = samples(made(dataset_name="sharegpt", dataset_path=str(path), num_prompts=2))
    assert [each.prompt for each in found] == ["How are the flowers today?"] * 2
    answer_len = len(TOKENIZER.encode("They are fine, thank you.", add_special_tokens=False).ids)
    assert found[0].max_tokens == answer_len
    fixed = made(dataset_name="sharegpt", dataset_path=str(path), output_len=9, no_oversample=True)
    assert [each.max_tokens for each in samples(fixed)] == [9]


def test_a_file_of_ones_own_has_prompts_and_messages(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    messages = [{"role": "user", "content": "hi"}]
    path.write_text(
        json.dumps({"prompt": "one", "output_tokens": 3}) + "\n\n" + json.dumps({"messages": messages}) + "\n"
    )
    given = {"dataset_name": "custom", "dataset_path": str(path), "num_prompts": 2, "disable_shuffle": True}
    found = samples(made(**given, custom_output_len=8))
    assert [each.prompt for each in found] == ["one", messages]
    assert [each.max_tokens for each in found] == [8, 8]
    with pytest.raises(ConfigError, match=r"line 2 .* no output_tokens"):
        made(**given, custom_output_len=-1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dataset_name": "custom"}, "needs --dataset-path"),
        ({"dataset_path": "x"}, "--dataset-path goes with"),
        ({"dataset_name": "custom", "dataset_path": "/nowhere"}, "cannot read /nowhere"),
        ({"tokenizer": "/nowhere"}, "no tokenizer at '/nowhere'"),
        ({"custom_output_len": 0}, "--custom-output-len"),
        ({"dataset_name": "sharegpt", "dataset_path": "x", "skip_tokenizer_init": True}, "needs a tokenizer"),
    ],
)
def test_what_cannot_be_sent_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(**settings)


def test_without_a_tokenizer_texts_are_of_words() -> None:
    found = samples(made(num_prompts=2, random_input_len=6, random_prefix_len=2, skip_tokenizer_init=True))
    assert [len(str(each.prompt).split()) for each in found] == [8, 8]


def test_tokens_are_counted_by_other_vocabularies_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nhello\n")
    assert load_tokenizer(str(tmp_path)).encode("hello", add_special_tokens=False).ids == [4]
    with pytest.raises(ConfigError, match="no tokenizer at"):
        load_tokenizer(str(tmp_path / "vocab.txt"))
