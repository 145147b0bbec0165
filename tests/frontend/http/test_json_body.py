"""The scan before decoding agrees with a plain JSON parser, and no input makes it slow or deep."""

from __future__ import annotations

import contextlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.http.json_body import MAX_DEPTH, MAX_TOKENS, BodyDecoder, scan_structure
from splitserve.frontend.openai.schema.chat import ChatRequest

KEYS = st.text(max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"early_stopping": "foo"},
            "early_stopping: expected true or false or \"never\" or null, got 'foo'",
        ),
        (
            {"early_stopping": 3},
            'early_stopping: expected true or false or "never" or null, got int',
        ),
        ({"priority": 2**31}, "priority: expected an integer from -2147483647 to 2147483647 or null"),
        ({"priority": -(2**70)}, "priority: expected an integer from -2147483647 to 2147483647 or null"),
        ({"priority": "a"}, "priority: expected an integer from -2147483647 to 2147483647 or null, got str"),
        ({"cache_salt": ""}, "cache_salt: expected a string of 1 to 128 characters or null"),
        ({"model": "x" * 513}, "model: expected a string of 0 to 512 characters or null"),
        ({"n": "1"}, "n: expected an integer or null, got str"),
        ({"stop": [5]}, "stop[0]: expected a string, got int"),
        ({"logit_bias": {"5": "x"}}, "logit_bias[...]: expected a number, got str"),
        (
            {"repetition_detection": {"max_pattern_size": True}},
            "repetition_detection.max_pattern_size: expected an integer, got bool",
        ),
        ({"messages": []}, "messages: expected an array of 1 to 4096 entries"),
        (
            {"messages": [{"role": "", "content": "x"}]},
            "messages[0].role: expected a string of 1 to 64 characters",
        ),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content: expected a string or an array or null, got int",
        ),
        ({"documents": [5]}, "documents[0]: expected an object, got int"),
    ],
)
def test_an_error_names_the_field_and_all_that_it_may_hold(fields: dict, message: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}]} | fields
    with pytest.raises(InvalidRequestError) as caught:
        BodyDecoder(ChatRequest).decode_now(json.dumps(body).encode())
    assert str(caught.value) == message
    assert caught.value.param == message.partition(":")[0]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "it ends too early (byte 0)"),
        (b'{"a":1', "it ends too early (byte 6)"),
        (b'{"a":1,}', "(byte 7)"),
        (b'{"a":NaN}', "invalid character (byte 5)"),
        (b'{"a":"b', "the string that begins at byte 5 does not end"),
        (b'\xef\xbb\xbf{"a":1}', "byte order mark (byte 0)"),
        (b'{"a":"\xff"}', "byte 6"),
        (b'{"b":"\\\\ud800","c":"\\ud83d\\ude00","a":"\\ud800"}', "half of a surrogate pair (byte 39)"),
        (b'{"b":"\\udc00\\ud800"}', "surrogate pair (byte "),
        (b'{"a":1,"a":2}', "'a' twice in one object (byte 7)"),
        (b'{"a":' + b"[" * MAX_DEPTH, f"levels (byte {MAX_DEPTH + 4})"),
        (b"[" + b"[]," * MAX_TOKENS, f"arrays (byte {3 * MAX_TOKENS // 2 - 1})"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_error_names_the_byte_at_which_a_text_is_no_json(body: bytes, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        BodyDecoder(Anything).decode_now(body)
    assert caught.value.code == "invalid_json"
    assert words in str(caught.value)


class Anything(msgspec.Struct, frozen=True):
    a: int = 0


@given(st.dictionaries(KEYS, JSON, max_size=5), st.booleans(), st.sampled_from([None, 1]))
def test_any_valid_object_is_decoded_with_all_its_keys(
    value: dict, ascii_only: bool, indent: int | None
) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "replace")
    if "\\ud" in json.dumps(value):
        return  # lone surrogates are refused by the decoder
    with contextlib.suppress(InvalidRequestError):
        decoded = BodyDecoder(Anything).decode_now(body)
        assert decoded.fields.keys() == value.keys()
        assert {field.path for field in decoded.unknown} == {(name,) for name in value.keys() - {"a"}}


def decoded_or_refused(body: bytes) -> bool:
    """Whether a body is an Anything or a client's error; any other exception is a fault of ours."""
    try:
        return isinstance(BodyDecoder(Anything).decode_now(body).value, Anything)
    except InvalidRequestError as error:
        return 400 <= error.status < 500


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(body: bytes) -> None:
    assert decoded_or_refused(body)


@given(st.text(alphabet='{}[]",:\\a1 ', max_size=40))
def test_bytes_that_look_like_json_are_decoded_or_refused(text: str) -> None:
    assert decoded_or_refused(text.encode())


@given(st.dictionaries(KEYS, st.integers(), min_size=1, max_size=4), st.data())
def test_a_repeated_key_is_refused_however_it_is_spelled(value: dict, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(value)))
    spelled = '"' + "".join(f"\\u{unit:04x}" for unit in _utf16(key)) + '"'
    body = json.dumps(value)[:-1] + f",{spelled}:1}}"
    if "\\ud" in body:
        return
    with pytest.raises(InvalidRequestError, match="twice"):
        scan_structure(body.encode())


def _utf16(text: str) -> list[int]:
    data = text.encode("utf-16-le", "surrogatepass")
    return [data[i] | data[i + 1] << 8 for i in range(0, len(data), 2)]


def test_equal_keys_of_different_objects_are_fine() -> None:
    decoded = BodyDecoder(Anything).decode_now(b'{"b":{"b":1},"c":[{"b":1},{"b":2}]}')
    assert decoded.fields.keys() == {"b", "c"}


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
def test_depth_is_counted_exactly(opening: bytes, closing: bytes) -> None:
    levels = opening.count(b"[") + opening.count(b"{")
    for depth, refused in ((MAX_DEPTH // levels, False), (MAX_DEPTH // levels + 1, True)):
        body = opening * depth + b"1" + closing * depth
        if refused:
            with pytest.raises(InvalidRequestError, match="deeper"):
                scan_structure(body)
        else:
            scan_structure(body)


def test_brackets_in_strings_are_no_nesting() -> None:
    decoded = BodyDecoder(Anything).decode_now(b'{"b":"' + b"[{" * 1000 + b'\\"[["}')
    assert decoded.fields.keys() == {"b"}


def test_the_number_of_values_is_bounded() -> None:
    with pytest.raises(InvalidRequestError, match="more than"):
        scan_structure(b"[" + b'"",' * MAX_TOKENS + b'""]')


@pytest.mark.parametrize(
    "body",
    [
        b'"' + b'\\"' * 2**21,
        b'\\"' * 2**21,
        b"\\" * 2**22,
        b'{"a":"' + b"\\" * (2**22 - 1),
        b'"' * (2**22 + 1),
        b'{"a":"' + b"\\u0061" * (2**22 // 6) + b'\\ud800"}',
    ],
    ids=["unended", "escapes", "backslashes", "open", "quotes", "escaped letters"],
)
def test_4_mib_of_the_worst_bytes_end_in_bounded_steps(body: bytes) -> None:
    # A scan that goes back over itself would take hours on these; the suite's time limit is the check.
    with pytest.raises(InvalidRequestError):
        BodyDecoder(Anything).decode_now(body)
