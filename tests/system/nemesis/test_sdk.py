"""Programs that use the OpenAI SDK, or LLM, notice nothing when the engine below them is killed."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from openai import OpenAI

from tests.system.nemesis.stage import say, serving

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

QUESTION: Any = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_tokens": 300,
    "seed": 5,
    "extra_body": {"ignore_eos": True},
}
KILL_AT_EVENT = 100


def test_a_stream_of_the_sdk_outlives_engine_and_worker() -> None:
    with (
        serving() as stage,
        OpenAI(base_url=f"{stage.url}/v1", api_key="x", max_retries=0, timeout=60) as sdk,
    ):
        model = sdk.models.list().data[0].id
        whole = sdk.chat.completions.create(model=model, **QUESTION)
        for kind in ("engine-core", "worker"):
            stage.wait_ready()
            victim = stage.pids(kind)[0]
            text, usage = "", None
            stream = sdk.chat.completions.create(
                model=model, stream=True, stream_options={"include_usage": True}, **QUESTION
            )
            for number, chunk in enumerate(stream):
                if number == KILL_AT_EVENT:
                    say(victim, signal.SIGKILL)
                text += chunk.choices[0].delta.content or "" if chunk.choices else ""
                usage = chunk.usage or usage
            assert text == whole.choices[0].message.content
            assert usage is not None
            assert usage.completion_tokens == whole.usage.completion_tokens
