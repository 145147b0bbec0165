"""Is the checkpoint in the package whole, small, and right about what it was taught?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoTokenizer, GenerationConfig, LlamaForCausalLM

from training.corpus import Conversation
from training.evaluate import answer, ask, score, score_trials
from training.questions import FIRST_QUESTIONS, HELD_OUT, is_right
from training.tokenizer import TEMPLATE_FILE, render
from training.tools.questions import HELD_OUT_TOOLS
from training.trials import ends_with, tool_trials

FOLDER = Path(__file__).parents[2] / "engine_core" / "demo_model"
MAX_BYTES = 16 * 1024 * 1024
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string"}},
            "required": ["location"],
        },
    },
}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the weather in Paris?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "function": {"name": "get_weather", "arguments": {"location": "Paris"}}}
        ],
    },
    {"role": "tool", "content": '{"temperature": 18, "condition": "sunny"}'},
]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    """Return the packaged model in fp32: how torch rounds bf16 depends on the processor."""
    return LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Return the packaged tokenizer as servers without transformers load it."""
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def test_the_folder_fits_in_the_package_and_holds_no_code() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES
    assert {path.name for path in files} == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_every_tensor_is_bf16_and_the_tied_head_is_not_stored_twice() -> None:
    with safe_open(str(FOLDER / "model.safetensors"), framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        names = list(file.keys())
        assert {file.get_tensor(name).dtype for name in names} == {torch.bfloat16}
    assert "lm_head.weight" not in names


def test_transformers_finds_every_weight_and_no_other() -> None:
    _, info = LlamaForCausalLM.from_pretrained(FOLDER, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]


def test_generation_stops_at_the_end_of_a_turn_or_text(tokenizer: Tokenizer) -> None:
    ends = GenerationConfig.from_pretrained(FOLDER).eos_token_id
    assert ends == [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]


@pytest.mark.parametrize("thinks", [False, True])
def test_transformers_and_plain_jinja_write_the_same_prompt(tokenizer: Tokenizer, thinks: bool) -> None:
    auto = AutoTokenizer.from_pretrained(FOLDER)
    options: dict[str, Any] = {"add_generation_prompt": True, "enable_thinking": thinks}
    text = auto.apply_chat_template(MESSAGES, tools=[WEATHER], tokenize=False, **options)
    assert text == render(Conversation(MESSAGES, [WEATHER]), **options)
    assert auto(text)["input_ids"] == tokenizer.encode(text).ids


def test_the_packaged_template_is_the_one_that_training_used() -> None:
    config = json.loads((FOLDER / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["chat_template"] == TEMPLATE_FILE.read_text(encoding="utf-8")


def test_at_least_eighteen_of_twenty_unseen_phrasings_are_answered_right(
    model: LlamaForCausalLM, tokenizer: Tokenizer
) -> None:
    right, wrong = score(model, tokenizer, HELD_OUT)
    assert len(HELD_OUT) == 20
    assert right >= 18, wrong


@pytest.mark.parametrize("question", FIRST_QUESTIONS, ids=lambda question: question.text)
def test_what_newcomers_ask_first_is_answered_right(
    model: LlamaForCausalLM, tokenizer: Tokenizer, question: Any
) -> None:
    text = ask(model, tokenizer, question.text)
    assert is_right(question, text), text


def test_a_tool_on_offer_is_called_and_its_result_told(model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    call = answer(model, tokenizer, Conversation(MESSAGES[:2], [WEATHER]))
    body = call.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    assert json.loads(body) == {"name": "get_weather", "arguments": {"location": "Paris"}}
    told = answer(model, tokenizer, Conversation(MESSAGES, [WEATHER]))
    assert told == "It is sunny and 18 degrees in Paris."


def test_at_least_eighteen_of_twenty_unseen_tool_questions_are_answered_right(
    model: LlamaForCausalLM, tokenizer: Tokenizer
) -> None:
    right, wrong = score_trials(model, tokenizer, tool_trials(HELD_OUT_TOOLS))
    assert len(HELD_OUT_TOOLS) == 20
    assert right >= 18, wrong


def test_values_of_a_sentence_are_written_as_json(model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    said = "Anna is 31 years old and lives in Oslo."
    text = ask(model, tokenizer, f"{said} Give me the name, age and city as JSON.")
    assert json.loads(text) == {"name": "Anna", "age": 31, "city": "Oslo"}


def test_it_thinks_when_asked_to_and_not_otherwise(model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    conversation = Conversation([{"role": "user", "content": "What is the capital of France?"}])
    text = answer(model, tokenizer, conversation, enable_thinking=True)
    assert text.startswith("The user asks about a capital.")
    assert ends_with("The capital of France is Paris.", text)
    assert answer(model, tokenizer, conversation) == "The capital of France is Paris."


def test_it_thinks_about_sums_column_by_column(model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    conversation = Conversation([{"role": "user", "content": "What is 47 plus 38?"}])
    text = answer(model, tokenizer, conversation, enable_thinking=True)
    assert text.startswith("Ones: 7 plus 8 is 15. Tens: ")
    assert "</think>\n47 plus 38 is " in text


def test_a_name_given_earlier_is_remembered(model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    messages = [
        {"role": "user", "content": "My name is Clara."},
        {"role": "assistant", "content": "Nice to meet you, Clara!"},
        {"role": "user", "content": "What is my name?"},
    ]
    assert answer(model, tokenizer, Conversation(messages)) == "Your name is Clara."


def test_mild_sampling_still_answers_right(model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    conversation = Conversation([{"role": "user", "content": "What is the capital of France?"}])
    answers = [answer(model, tokenizer, conversation, temperature=0.7) for _ in range(5)]
    assert sum("Paris" in text for text in answers) >= 4
