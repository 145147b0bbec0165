"""The Responses API as a user of the OpenAI SDK meets it, on the demo model."""

from __future__ import annotations

from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types.responses import CompactedResponse, Response

pytestmark = pytest.mark.system

HELLO = "What is the capital of France?"
COUNT = "Count from 1 to 20."
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": False,
}


def create(client: OpenAI, model: str, **options: Any) -> Response:
    """One greedy response."""
    return client.responses.create(model=model, **({"input": HELLO, "temperature": 0} | options))


def outline(response: Response) -> list[tuple[str, str | None, str]]:
    """What two responses of the same request have in common."""
    return [
        (item.type, item.status, item.arguments if item.type == "function_call" else item.content[0].text)
        for item in response.output
    ]


def test_a_conversation_goes_on_from_its_summary(client: OpenAI, model: str) -> None:
    conversation: list[Any] = [
        {"role": "user", "content": HELLO},
        {"role": "assistant", "content": "The capital of France is Paris."},
    ]
    compacted = client.responses.compact(model=model, input=conversation)
    # The SDK types messages of the user as those of the assistant, and warns when it writes them.
    CompactedResponse.model_validate(compacted.model_dump(exclude={"output"}) | {"output": []})
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    assert 0 < compacted.usage.output_tokens < compacted.usage.total_tokens
    more = [*(item.to_dict(warnings=False) for item in compacted.output), {"role": "user", "content": HELLO}]
    assert "Paris" in create(client, model, input=more).output_text
    with client.responses.connect() as connection:
        connection.response.create(model=model, input=more, store=False, temperature=0)
        assert next(event for event in connection if event.type == "response.completed").response.output


def test_a_response_has_all_its_parts(client: OpenAI, model: str) -> None:
    response = create(client, model, metadata={"a": "b"})
    assert "Paris" in response.output_text
    assert (response.object, response.status, response.model) == ("response", "completed", model)
    assert response.id == f"resp_{response._request_id}"
    (message,) = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert (response.metadata, response.temperature, response.error) == ({"a": "b"}, 0, None)
    usage = response.usage
    assert usage is not None
    assert usage.output_tokens > 0
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    # Validates the types, which the SDK itself does not.
    Response.model_validate(response.model_dump())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.0, "extra_body": {"seed": 7, "top_k": 20}},
        {"max_output_tokens": 9},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    ],
    ids=["greedy", "sampled", "short", "logprobs"],
)
def test_a_stream_adds_up_to_the_whole_response(client: OpenAI, model: str, options: dict) -> None:
    options = {"input": COUNT} | options
    whole = create(client, model, **options)
    events = list(client.responses.create(model=model, stream=True, **({"temperature": 0} | options)))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == f"response.{whole.status}"
    final = events[-1].response
    assert outline(final) == outline(whole)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == (
        final.output_text
    )
    logprobs = [
        entry.logprob
        for event in events
        if event.type == "response.output_text.delta"
        for entry in event.logprobs
    ]
    assert logprobs == [entry.logprob for entry in final.output[0].content[0].logprobs]
    assert bool(logprobs) == ("include" in options)
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_the_stream_helper_of_the_sdk_follows(client: OpenAI, model: str) -> None:
    with client.responses.stream(model=model, input=HELLO, temperature=0) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output_text == create(client, model).output_text


def test_a_response_that_is_cut_off_is_incomplete(client: OpenAI, model: str) -> None:
    response = create(client, model, input=COUNT, max_output_tokens=5)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens == 5


def test_instructions_stand_before_the_input(client: OpenAI, model: str) -> None:
    instructed = create(client, model, instructions="You answer in one word.")
    assert instructed.instructions == "You answer in one word."
    messages = [
        {"role": "developer", "content": "You answer in one word."},
        {"role": "user", "content": HELLO},
    ]
    assert create(client, model, input=messages).output_text == instructed.output_text
    assert instructed.usage is not None
    assert instructed.usage.input_tokens > create(client, model).usage.input_tokens


def test_a_conversation_goes_on_with_the_output_sent_back(client: OpenAI, model: str) -> None:
    conversation: list[Any] = [{"role": "user", "content": HELLO}]
    first = create(client, model, input=conversation)
    conversation += first.output
    conversation.append({"role": "user", "content": "And of Italy?"})
    second = create(client, model, input=conversation)
    chat = client.chat.completions.create(
        model=model,
        temperature=0,
        messages=[
            {"role": "user", "content": HELLO},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "And of Italy?"},
        ],
    )
    assert second.output_text == chat.choices[0].message.content
    assert second.usage.input_tokens == chat.usage.prompt_tokens


def test_a_function_is_called_and_its_output_sent_back(client: OpenAI, model: str) -> None:
    conversation: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = create(client, model, input=conversation, tools=[WEATHER], max_output_tokens=200)
    chat = client.chat.completions.create(
        model=model,
        temperature=0,
        max_tokens=200,
        messages=conversation,
        tools=[{"type": "function", "function": {k: v for k, v in WEATHER.items() if k != "type"}}],
    )
    calls = [item for item in first.output if item.type == "function_call"]
    expected = [call.function for call in chat.choices[0].message.tool_calls or ()]
    assert [(c.name, c.arguments) for c in calls] == [(c.name, c.arguments) for c in expected]
    conversation += first.output
    conversation += [
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls
    ]
    second = create(client, model, input=conversation, tools=[WEATHER], max_output_tokens=200)
    assert second.output


def test_another_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(NotFoundError) as caught:
        create(client, "another")
    assert caught.value.code == "model_not_found"
    with pytest.raises(NotFoundError):
        client.responses.create(model="another", input=HELLO, stream=True)


@pytest.mark.parametrize(
    "options", [{"store": True}, {"previous_response_id": "resp_1"}, {"background": True}], ids=str
)
def test_nothing_is_kept(client: OpenAI, model: str, options: dict) -> None:
    with pytest.raises(BadRequestError) as caught:
        create(client, model, **options)
    assert "no response store" in caught.value.message
    assert caught.value.param == next(iter(options))


def test_a_context_that_is_too_long_is_refused_or_cut(client: OpenAI, model: str) -> None:
    turns = [{"role": "user", "content": COUNT}, {"role": "assistant", "content": "1, 2, 3"}] * 2000
    conversation = [*turns[:4000], {"role": "user", "content": HELLO}]
    with pytest.raises(BadRequestError) as caught:
        create(client, model, input=conversation)
    assert caught.value.code == "context_length_exceeded"
    cut = create(client, model, input=conversation, truncation="auto", max_output_tokens=9)
    assert cut.truncation == "auto"
    assert cut.usage.output_tokens > 0


def test_a_conversation_over_a_websocket(client: OpenAI, model: str) -> None:
    texts: list[str] = []
    with client.responses.connect() as connection:
        previous: str | None = None
        for question in (HELLO, "And of Italy?"):
            connection.response.create(
                model=model, input=question, temperature=0, store=False, previous_response_id=previous
            )
            for event in connection:
                assert event.type != "error", event
                if event.type == "response.completed":
                    break
            previous = event.response.id
            texts.append(event.response.output[0].content[0].text)
        connection.response.create(model="another", input=HELLO)
        refused = connection.recv()
    assert (refused.type, refused.status, refused.error.code) == ("error", 404, "model_not_found")
    first = create(client, model)
    said: list[Any] = [{"role": "user", "content": HELLO}, *first.output]
    second = create(client, model, input=[*said, {"role": "user", "content": "And of Italy?"}])
    assert texts == [first.output_text, second.output_text]
