"""A budget of reasoning on a real model: the demo model, with tokens that are tags of reasoning."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from splitserve import LLM, SamplingParams, StructuredOutputs
from splitserve.engine_core.checkpoint.source import DEMO_MODEL

pytestmark = pytest.mark.system

# For a tokenizer that has none.
NAMES = {"<tool_response>": "<think>", "</tool_response>": "</think>"}
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if enable_thinking is not defined or enable_thinking %}{{ '<think>\n' }}"
    "{% else %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
)
CHAT = [{"role": "user", "content": "Why is the sky blue?"}]


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is made to think by its template."""
    directory = tmp_path_factory.mktemp("thinker") / "model"
    shutil.copytree(DEMO_MODEL, directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = directory / name
        text = path.read_text()
        for old, new in NAMES.items():
            text = text if json.dumps(new) in text else text.replace(json.dumps(old), json.dumps(new))
        path.write_text(text)
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": TEMPLATE}))
    return directory


@pytest.fixture(scope="module")
def llm(thinker: Path) -> Iterator[LLM]:
    with LLM(str(thinker), num_threads=1, num_blocks=64, max_num_seqs=4, use_tqdm=False) as made:
        yield made


@pytest.fixture(scope="module")
def end_id(llm: LLM) -> int:
    return llm.get_tokenizer().added_tokens["</think>"]


@pytest.mark.parametrize("num_tokens", [0, 1, 6])
def test_reasoning_ends_after_so_many_tokens(llm: LLM, end_id: int, num_tokens: int) -> None:
    # It is never the model's own wish.
    params = SamplingParams(
        n=2,
        seed=4,
        max_tokens=12,
        ignore_eos=True,
        logit_bias={end_id: -100},
        thinking_token_budget=num_tokens,
    )
    (output,) = llm.chat(CHAT, params, use_tqdm=False)
    for completion in output.outputs:
        assert len(completion.token_ids) == 12
        assert list(completion.token_ids).index(end_id) == num_tokens
    (again,) = llm.chat(CHAT, params, use_tqdm=False)
    assert [each.token_ids for each in again.outputs] == [each.token_ids for each in output.outputs]


def test_a_budget_that_is_not_used_up_changes_no_token(llm: LLM) -> None:
    # The output cannot end within its reasoning.
    plain = SamplingParams(seed=4, max_tokens=12, min_tokens=12)
    bounded = SamplingParams(seed=4, max_tokens=12, min_tokens=12, thinking_token_budget=1000)
    outputs = [llm.chat(CHAT, params, use_tqdm=False)[0].outputs[0] for params in (plain, bounded)]
    assert outputs[0].token_ids == outputs[1].token_ids


def test_an_answer_of_a_format_follows(llm: LLM, end_id: int) -> None:
    params = SamplingParams(
        seed=4,
        max_tokens=40,
        thinking_token_budget=5,
        logit_bias={end_id: -100},
        structured_outputs=StructuredOutputs(choice=("yes", "no")),
    )
    completion = llm.chat(CHAT, params, use_tqdm=False)[0].outputs[0]
    assert list(completion.token_ids).index(end_id) == 5
    text = llm.get_tokenizer().decode(completion.token_ids, skip_special_tokens=False)
    assert text.partition("</think>")[2].removesuffix("<|im_end|>").strip() in ("yes", "no")


def test_reasoning_that_the_template_closed_has_no_budget(llm: LLM) -> None:
    plain = SamplingParams(seed=4, max_tokens=8, ignore_eos=True)
    bounded = SamplingParams(seed=4, max_tokens=8, ignore_eos=True, thinking_token_budget=0)
    options = {"enable_thinking": False}
    outputs = [
        llm.chat(CHAT, params, use_tqdm=False, chat_template_kwargs=options)[0].outputs[0]
        for params in (plain, bounded)
    ]
    assert outputs[0].token_ids == outputs[1].token_ids
