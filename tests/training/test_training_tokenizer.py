"""Does any text survive the tokenizer, and do both template engines write the same prompt?"""

from __future__ import annotations

from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from training.corpus import Conversation, conversations
from training.tokenizer import (
    CONTROL_TOKENS,
    MARKS,
    TEMPLATE_FILE,
    render,
    tokenizer_config,
    train_tokenizer,
    with_marks,
)

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Says "sunny" & <cloudy>\n\tor é',
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
            "minimum": 1,
            "default": None,
        },
    },
}
CALL = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "Weather "}, {"type": "text", "text": "in Paris?"}],
    },
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
    {"role": "tool", "tool_call_id": "1", "content": '{"temperature": 18}'},
    {"role": "assistant", "content": "It is 18 degrees."},
    {"role": "user", "content": "Thanks"},
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Return a small tokenizer trained on a little of the text."""
    return train_tokenizer((render(item) for item in conversations(1, 300)), vocab_size=600)


def prompt() -> str:
    """Return the conversation above as the model sees it."""
    return render(Conversation(MESSAGES, [TOOL]), add_generation_prompt=True)


@pytest.mark.parametrize(
    "text", ["", " ", "Hello\n\n world ", "naïve café", "日本語", "🙂👩‍🚀", "\x00\x7f", "a\tb\r\n", "1234 5"]
)
def test_any_text_comes_back_as_it_went_in(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_digits_stand_alone(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("2048").tokens == ["2", "0", "4", "8"]


def test_control_tokens_have_the_first_ids_and_the_marks_the_last(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_to_id(token) for token in CONTROL_TOKENS] == [0, 1, 2, 3]
    assert [tokenizer.token_to_id(token) for token in MARKS] == [594, 595, 596, 597, 598, 599]


def test_a_tokenizer_without_the_marks_of_reasoning_gets_them_for_its_last_merges(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [render(item) for item in conversations(1, 300)]
    with monkeypatch.context() as patch:
        patch.setattr("training.tokenizer.MARKS", MARKS[2:])
        older = train_tokenizer(texts, vocab_size=600)
    assert older.token_to_id("<think>") is None
    assert with_marks(older).get_vocab() == tokenizer.get_vocab()
    text = "<think>\nIt is sunny.\n</think>\n"
    assert with_marks(older).encode(text).ids == tokenizer.encode(text).ids


def test_a_tokenizer_with_all_marks_stays_as_it_is(tokenizer: Tokenizer) -> None:
    assert with_marks(tokenizer) is tokenizer


def test_detokenising_keeps_the_marks_and_drops_the_control_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<tool_call>\n{}\n</tool_call><|im_end|>").ids
    assert tokenizer.decode(ids) == "<tool_call>\n{}\n</tool_call>"


def test_the_prompt_is_chatml_with_tools_calls_and_results() -> None:
    assert prompt() == (
        "<|im_start|>system\nBe kind.\nTools:\n"
        '{"name": "get_weather", "description": "Says \\"sunny\\" & <cloudy>\\n\\tor é", "parameters": '
        '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], '
        '"additionalProperties": false, "minimum": 1, "default": null}}\n'
        "Call a tool with <tool_call> and </tool_call>.<|im_end|>\n"
        "<|im_start|>user\nWeather in Paris?<|im_end|>\n"
        "<|im_start|>assistant\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>\n'
        '<|im_start|>user\n<tool_response>\n{"temperature": 18}\n</tool_response><|im_end|>\n'
        "<|im_start|>assistant\nIt is 18 degrees.<|im_end|>\n"
        "<|im_start|>user\nThanks<|im_end|>\n<|im_start|>assistant\n"
    )


def test_reasoning_is_begun_by_the_prompt_only_when_it_is_asked_for() -> None:
    asked = Conversation(MESSAGES[-1:])
    plain = render(asked, add_generation_prompt=True)
    assert plain.endswith("<|im_start|>assistant\n")
    assert render(asked, add_generation_prompt=True, enable_thinking=True) == plain + "<think>\n"


def test_reasoning_is_shown_until_the_next_question() -> None:
    thought: dict[str, Any] = {
        "role": "assistant",
        "content": "",
        "tool_calls": [CALL],
        "reasoning_content": "Hm.",
    }
    asked: list[dict[str, Any]] = [
        {"role": "user", "content": "Paris?"},
        thought,
        {"role": "tool", "content": "sunny"},
    ]
    assert "<|im_start|>assistant\n<think>\nHm.\n</think>\n<tool_call>" in render(Conversation(asked))
    assert "Hm." not in render(Conversation([*asked, {"role": "user", "content": "And?"}]))


def test_arguments_may_be_a_json_string_as_in_the_openai_api() -> None:
    as_text = {"type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    one = [*MESSAGES[:2], {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    other = [*MESSAGES[:2], {"role": "assistant", "content": "", "tool_calls": [as_text]}]
    assert render(Conversation(one)) == render(Conversation(other))


def test_without_system_message_and_tools_there_is_no_system_block() -> None:
    assert render(Conversation([{"role": "user", "content": "Hi"}])) == "<|im_start|>user\nHi<|im_end|>\n"


def test_whitespace_options_of_the_environment_do_not_matter() -> None:
    text = TEMPLATE_FILE.read_text(encoding="utf-8")
    plain = ImmutableSandboxedEnvironment(trim_blocks=False, lstrip_blocks=False).from_string(text)
    assert plain.render(messages=MESSAGES, tools=[TOOL], add_generation_prompt=True) == prompt()


def test_the_configuration_names_a_class_that_every_reader_has(tokenizer: Tokenizer) -> None:
    config = tokenizer_config(tokenizer)
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["eos_token"] == "<|im_end|>"
    assert len(config["added_tokens_decoder"]) == len(CONTROL_TOKENS) + len(MARKS)
