"""The Messages API as a user of Anthropic's SDK meets it, on the demo model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic

from tests.system.processes import Server, frontend, wait_ready

pytestmark = pytest.mark.system

HELLO = [{"role": "user", "content": "What is the capital of France?"}]
COUNT = [{"role": "user", "content": "Count from 1 to 20."}]
# The SDK has no parameter for it.
GREEDY = {"temperature": 0}
KEY = "sk-system-test-key"


@pytest.fixture
def claude(server: Server) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=60) as sdk:
        yield sdk


def create(claude: Anthropic, model: str, **options: Any) -> anthropic.types.Message:
    """One greedy message."""
    fields = {"messages": HELLO, "max_tokens": 60, "extra_body": GREEDY} | options
    return claude.messages.create(model=model, **fields)


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_a_message_has_all_its_parts(claude: Anthropic, model: str) -> None:
    message = create(claude, model)
    assert "Paris" in text_of(message)
    assert (message.type, message.role, message.model) == ("message", "assistant", model)
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.id == f"msg_{message._request_id}"
    assert message.usage.output_tokens > 0


def test_a_stream_adds_up_to_the_whole_message(claude: Anthropic, model: str) -> None:
    whole = create(claude, model, messages=COUNT)
    with claude.messages.stream(model=model, messages=COUNT, max_tokens=60, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == text_of(final) == text_of(whole)
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


def test_the_events_of_a_stream_come_in_their_order(claude: Anthropic, model: str) -> None:
    events = [
        event.type
        for event in claude.messages.create(
            model=model, messages=COUNT, max_tokens=20, extra_body=GREEDY, stream=True
        )
    ]
    assert events[:2] == ["message_start", "content_block_start"]
    assert set(events[2:-3]) == {"content_block_delta"}
    assert events[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_a_system_prompt_is_part_of_the_prompt(claude: Anthropic, model: str) -> None:
    system = "You are a pirate."
    plain, with_system = create(claude, model), create(claude, model, system=system)
    assert prompt_tokens(with_system) > prompt_tokens(plain)
    as_blocks = create(claude, model, system=[{"type": "text", "text": system}])
    assert text_of(as_blocks) == text_of(with_system)


def prompt_tokens(message: anthropic.types.Message) -> int:
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def test_a_stop_sequence_ends_the_text_and_is_named(claude: Anthropic, model: str) -> None:
    full = text_of(create(claude, model, messages=COUNT))
    message = create(claude, model, messages=COUNT, stop_sequences=["zebra", "7"])
    assert text_of(message) == full[: full.index("7")]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "7")


def test_max_tokens_end_the_message(claude: Anthropic, model: str) -> None:
    message = create(claude, model, messages=COUNT, max_tokens=5)
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 5)


def test_a_turn_that_was_begun_goes_on(claude: Anthropic, model: str) -> None:
    full = text_of(create(claude, model))
    begun = full[: len(full) // 2].rstrip()
    rest = create(claude, model, messages=[*HELLO, {"role": "assistant", "content": begun}])
    assert begun + text_of(rest) == full


def test_counted_tokens_are_those_of_the_message(claude: Anthropic, model: str) -> None:
    counted = claude.messages.count_tokens(model=model, messages=HELLO, system="Be brief.")
    message = create(claude, model, system="Be brief.")
    assert counted.input_tokens == prompt_tokens(message)
    again = create(claude, model, system="Be brief.")
    assert prompt_tokens(again) == counted.input_tokens


def test_an_unknown_model_is_not_found(claude: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        create(claude, "no-such-model")
    assert caught.value.body["error"]["type"] == "not_found_error"
    assert caught.value.body["request_id"] == caught.value.request_id


def test_max_tokens_are_required(server: Server) -> None:
    answer = httpx.post(f"{server.base_url}/messages", json={"messages": HELLO})
    assert answer.status_code == 400
    assert answer.json()["error"] == {"type": "invalid_request_error", "message": "max_tokens is missing"}


def test_an_image_is_refused_by_its_place(claude: Anthropic, model: str) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://localhost/x.png"}}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]\.type"):
        create(claude, model, messages=[{"role": "user", "content": [image]}])


def test_the_key_of_the_sdk_is_a_key(server: Server, folder: Path, model: str) -> None:
    flags = ("--api-key", KEY, "--public-path", "/ready")
    with frontend(folder, server.address, flags=flags) as (url, process):
        wait_ready(url, process)
        right = Anthropic(base_url=url, api_key=KEY, max_retries=0)
        bearer = Anthropic(base_url=url, api_key=None, auth_token=KEY, max_retries=0)
        wrong = Anthropic(base_url=url, api_key="wrong", max_retries=0)
        with right, bearer, wrong:
            assert "Paris" in text_of(create(right, model))
            assert "Paris" in text_of(create(bearer, model))
            with pytest.raises(anthropic.AuthenticationError) as caught:
                create(wrong, model)
        assert caught.value.body["error"]["type"] == "authentication_error"
