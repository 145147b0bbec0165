"""What becomes of every request field that vLLM's clients may send: served, refused by name, or ignored."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from msgspec import Struct

from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.openai.schema.completions import CompletionRequest
from splitserve.frontend.openai.schema.unsupported import IGNORED
from tests.frontend.http.fake_pool import FakePool

CHAT = "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}
TEXT = "/v1/completions", {"prompt": "x"}
SAMPLING = [
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "model",
    "n",
    "presence_penalty",
    "prompt_logprobs",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "use_beam_search",
    "length_penalty",
    "top_k",
    "min_p",
    "repetition_penalty",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "truncate_prompt_tokens",
    "truncation_side",
    "logprob_token_ids",
    "allowed_token_ids",
    "bad_words",
    "add_special_tokens",
    "priority",
    "request_id",
    "cache_salt",
    "repetition_detection",
    "response_format",
    "structured_outputs",
    "return_tokens_as_token_ids",
    "return_token_ids",
    "echo",
]
SERVED = [
    (
        ChatRequest,
        [
            *SAMPLING,
            *("messages", "top_logprobs", "max_completion_tokens", "add_generation_prompt"),
            *("continue_final_message", "documents", "chat_template_kwargs", "reasoning_effort"),
            "thinking_token_budget",
        ],
    ),
    (CompletionRequest, [*SAMPLING, "prompt"]),
]
# With a value that would change the answer.
REFUSED = {
    "structural_tag": {},
    "guided_json": {},
    "guided_regex": "a",
    "guided_choice": ["a"],
    "guided_grammar": "a",
    "guided_json_object": True,
    "guided_whitespace_pattern": "a",
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "watermarking": True,
    "spaces_between_special_tokens": False,
    "chat_template": "x",
    "media_io_kwargs": {"image": {}},
    "mm_processor_kwargs": {"a": 1},
    "mm_payload": {"a": 1},
    "prompt_embeds": "AAAA",
    "suffix": "x",
    "logits_processors": ["x"],
    "kv_transfer_params": {"a": 1},
    "ec_transfer_params": {"a": 1},
    "vllm_xargs": {"a": 1},
    "return_token_offsets": True,
    "return_prompt_text": True,
    "return_weight_versions": True,
    "routed_experts_prompt_start": 3,
}
# They change neither a token nor a field of the answer here.
WITHOUT_EFFECT = {
    "user": "me",
    "parallel_tool_calls": False,
    "include_reasoning": False,
    "session_id": "s",
    "stream_interval": 5,
    "return_mm_kwargs": False,
    "guided_decoding_backend": "x",
}
BOTH = pytest.mark.parametrize(("path", "body"), [CHAT, TEXT], ids=["chat", "text"])


@pytest.mark.parametrize(("kind", "names"), SERVED)
def test_what_is_served_has_a_field(kind: type[Struct], names: list[str]) -> None:
    assert set(names) <= set(kind.__struct_fields__)


@BOTH
@pytest.mark.parametrize("field", REFUSED)
async def test_what_is_not_built_is_refused_by_name(
    client: httpx.AsyncClient, pool: FakePool, path: str, body: dict, field: str
) -> None:
    response = await client.post(path, json=body | {field: REFUSED[field]})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")
    assert field in error["message"]
    assert not pool.seen


@BOTH
@pytest.mark.parametrize("field", WITHOUT_EFFECT)
async def test_what_has_no_effect_is_taken(
    client: httpx.AsyncClient, path: str, body: dict, field: str
) -> None:
    assert field in IGNORED
    assert (await client.post(path, json=body | {field: WITHOUT_EFFECT[field]})).status_code == 200


def test_every_field_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    named = {*REFUSED, *WITHOUT_EFFECT, *(name for _, names in SERVED for name in names)}
    missing = {name for name in named if f"`{name}`" not in text and not name.startswith("guided_")}
    assert missing == set()
