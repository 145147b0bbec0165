"""Templates of well-known formats write what these formats are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from splitserve.engine_core.errors import ConfigError, InvalidRequestError, ModelLoadError
from splitserve.frontend.text.chat.known_templates import RERANKER, TEMPLATES, find_template
from splitserve.frontend.text.chat.options import ChatOptions
from splitserve.frontend.text.chat.template import ChatTemplate
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.frontend.checkpoints import write_checkpoint

CHAT: list[Any] = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Go"},
]
SYSTEM: Any = {"role": "system", "content": "Be kind."}
B, E = "<|endoftext|>", "<|im_end|>"
TASK = "Below is an instruction that describes a task. Write a response that appropriately completes the "
CURIOUS = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
    "detailed, and polite answers to the user's questions. "
)
L3 = "<|start_header_id|>{}<|end_header_id|>\n\n".format
# What precedes the turns without a system message and with one, then the turns of a chat.
EXPECTED = {
    "alpaca": (
        f"{B}{TASK}request.\n\n",
        f"{B}Be kind.\n\n",
        f"### Instruction:\nHi\n\n### Response:\nYes?{E}\n\n### Instruction:\nGo\n\n### Response:\n",
    ),
    "chatml": (
        "",
        "<|im_start|>system\nBe kind.<|im_end|>\n",
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n"
        "<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n",
    ),
    "gemma": (
        f"{B}<start_of_turn>user\n",
        f"{B}<start_of_turn>user\nBe kind.\n\n",
        "Hi<end_of_turn>\n<start_of_turn>model\nYes?<end_of_turn>\n"
        "<start_of_turn>user\nGo<end_of_turn>\n<start_of_turn>model\n",
    ),
    "llama-2": (
        f"{B}[INST] ",
        f"{B}[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\n",
        f"Hi [/INST] Yes? {E}{B}[INST] Go [/INST]",
    ),
    "llama-3": (
        B,
        f"{B}{L3('system')}Be kind.<|eot_id|>",
        f"{L3('user')}Hi<|eot_id|>{L3('assistant')}Yes?<|eot_id|>{L3('user')}Go<|eot_id|>{L3('assistant')}",
    ),
    "mistral": (f"{B}[INST] ", f"{B}[INST] Be kind.\n\n", f"Hi [/INST] Yes?{E}[INST] Go [/INST]"),
    "phi-3": (
        "",
        "<|system|>\nBe kind.<|end|>\n",
        "<|user|>\nHi<|end|>\n<|assistant|>\nYes?<|end|>\n<|user|>\nGo<|end|>\n<|assistant|>\n",
    ),
    "vicuna": (f"{B}{CURIOUS}", f"{B}Be kind. ", f"USER: Hi ASSISTANT: Yes?{E}USER: Go ASSISTANT:"),
    "zephyr": (
        "",
        f"<|system|>\nBe kind.{E}\n",
        f"<|user|>\nHi{E}\n<|assistant|>\nYes?{E}\n<|user|>\nGo{E}\n<|assistant|>\n",
    ),
}


def template_of(folder: Path, name: str) -> ChatTemplate:
    names: dict[str, object] = {"bos_token": B, "eos_token": E}
    source = find_template(name)
    return ChatTemplate({"default": source}, Tokenizer(write_checkpoint(folder, config=names)))


@pytest.mark.parametrize("name", EXPECTED)
def test_they_write_their_formats(tmp_path: Path, name: str) -> None:
    template = template_of(tmp_path, name)
    bare, said, turns = EXPECTED[name]
    for chat, expected in ((CHAT, bare + turns), ([SYSTEM, *CHAT], said + turns)):
        assert template.render(chat).text == expected
        closed = template.render(chat, ChatOptions(add_generation_prompt=False)).text
        assert expected.startswith(closed)
    for wrong in ({"role": "tool", "content": "x"}, SYSTEM):
        with pytest.raises(InvalidRequestError, match=f"has no role {wrong['role']} in this place"):
            template.render([*CHAT, wrong])


def test_all_names_are_tested() -> None:
    assert EXPECTED.keys() | {RERANKER} == TEMPLATES.keys()


def test_a_file_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "my.jinja").write_text("{{ messages[0].content }}!")
    assert template_of(tmp_path, str(tmp_path / "my.jinja")).render(CHAT[:1]).text == "Hi!"
    with pytest.raises(ConfigError, match="must be a file or one of alpaca, chatml"):
        find_template(str(tmp_path / "other.jinja"))
    (tmp_path / "my.jinja").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="--chat-template"):
        find_template(str(tmp_path / "my.jinja"))
    with pytest.raises(ModelLoadError):
        ChatTemplate({"default": "{% if"}, Tokenizer(write_checkpoint(tmp_path, config={})))
