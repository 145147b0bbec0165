"""A server that drafts gives the answers of one that does not, and tells how much it has drafted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from splitserve.engine_core.checkpoint.source import DEMO_MODEL
from tests.system.processes import serve

pytestmark = pytest.mark.system

PROMPT = "The red fox met the old owl. The red fox greeted the old owl. The red fox met the old"
CONFIG = f'{{"method": ["ngram", "draft_model"], "model": "{DEMO_MODEL}", "num_speculative_tokens": 6}}'
REQUESTS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "seed": 11, "presence_penalty": 0.4},
    {"temperature": 0.6, "seed": 12, "n": 3, "stop": ["owl. The owl"]},
    {"temperature": 0.8, "seed": 13, "extra_body": {"min_tokens": 20, "top_k": 4}},
]


def ask(client: OpenAI, model: str, **options: Any) -> list[tuple[Any, ...]]:
    extra_body = {"return_token_ids": True, **options.pop("extra_body", {})}
    answer = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=60, logprobs=2, extra_body=extra_body, **options
    )
    return [
        (choice.text, choice.token_ids, choice.logprobs.token_logprobs, choice.finish_reason)
        for choice in answer.choices
    ]


def counters(url: str) -> dict[str, float]:
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_answers_are_those_of_a_server_that_does_not_draft(folder: Path, client: OpenAI, model: str) -> None:
    plain = [ask(client, model, **request) for request in REQUESTS]
    with (
        serve(folder, (f"--speculative-config={CONFIG}",)) as server,
        OpenAI(base_url=server.base_url, api_key="unused", max_retries=0, timeout=60) as drafting,
    ):
        assert [ask(drafting, model, **request) for request in REQUESTS] == plain
        stream = drafting.completions.create(
            model=model, prompt=PROMPT, max_tokens=60, temperature=0, stream=True
        )
        assert "".join(chunk.choices[0].text for chunk in stream) == plain[0][0][0]
        found = counters(server.url)
        # The text ends in the middle, by what the frontend alone knows.
        text = plain[0][0][0]
        stopped = drafting.completions.create(
            model=model, prompt=PROMPT, max_tokens=60, temperature=0, stop=[text[: len(text) // 2]]
        )
    drafted = found["splitserve:spec_decode_num_draft_tokens_total"]
    assert 0 < found["splitserve:spec_decode_num_accepted_tokens_total"] <= drafted
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage is not None
    assert stopped.usage.completion_tokens < 60
    # Whether a row drafts depends on what drafts cost on this machine by then.
    details = stopped.usage.completion_tokens_details
    accepted = 0 if details is None else details.accepted_prediction_tokens
    assert accepted is not None
    assert 0 <= accepted <= stopped.usage.completion_tokens
