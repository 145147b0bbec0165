"""How does the demo model read and write text? A byte-level BPE with single digits, and the chat template."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.corpus import Conversation

# Control tokens are skipped by detokenisers; marks are text that parsers of tool calls and reasoning see.
CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
VOCAB_SIZE = 2048
MAX_TOKENS = 2048
TEMPLATE_FILE = Path(__file__).with_name("chat_template.jinja")


@cache
def chat_template() -> Template:
    """Return the compiled chat template, in the environment that servers use for it."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(TEMPLATE_FILE.read_text(encoding="utf-8"))


def render(
    conversation: Conversation, add_generation_prompt: bool = False, enable_thinking: bool = False
) -> str:
    """Return a conversation as the text that the model sees."""
    return chat_template().render(
        messages=conversation.messages,
        tools=conversation.tools or None,
        add_generation_prompt=add_generation_prompt,
        enable_thinking=enable_thinking,
    )


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Train a tokenizer whose alphabet is all 256 bytes, so that any text comes back as it went in."""
    tokenizer = Tokenizer(models.BPE())
    # Digits on their own make a sum a matter of columns instead of one fact per number.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(MARKS),
        min_frequency=2,
        show_progress=False,
        special_tokens=CONTROL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    add_marks(tokenizer)
    return tokenizer


def add_marks(tokenizer: Tokenizer) -> None:
    """Add the marks as tokens after all others."""
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKS])


def with_marks(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer of the same size that has all marks; the last merges make room for those it lacks.

    Nothing is built on the last merges, so other tokens keep their ids if the new marks are the first ones.
    """
    missing = [mark for mark in MARKS if tokenizer.token_to_id(mark) is None]
    if not missing:
        return tokenizer
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [entry for entry in state["added_tokens"] if entry["content"] not in MARKS]
    model = state["model"]
    last = len(model["vocab"]) - len(missing)
    model["vocab"] = {token: token_id for token, token_id in model["vocab"].items() if token_id < last}
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) in model["vocab"]]
    out = Tokenizer.from_str(json.dumps(state))
    add_marks(out)
    return out


def tokenizer_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the contents of tokenizer_config.json."""
    added = {
        str(tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token in CONTROL_TOKENS,
        }
        for token in CONTROL_TOKENS + MARKS
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": added,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_TOKENS,
        "chat_template": TEMPLATE_FILE.read_text(encoding="utf-8"),
    }


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    tokenizer.save(str(folder / "tokenizer.json"))
    text = json.dumps(tokenizer_config(tokenizer), indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
