"""Whatever a checkpoint's tokenizer files hold, loading ends soon and names them, and requests get errors."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from splitserve.engine_core.checkpoint import files
from splitserve.engine_core.errors import InvalidRequestError, ModelLoadError
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.text import tokenizer, tokenizer_library
from splitserve.frontend.text.bad_words import spell_bad_words
from splitserve.frontend.text.chat.template import template_sources
from splitserve.frontend.text.text_patterns import has_unknown_pattern
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.frontend.checkpoints import byte_level, sentencepiece, write_checkpoint

Json = dict


def load(directory: Path, change: Callable[[Json], object]) -> Tokenizer:
    """Load the tokenizer of a checkpoint whose tokenizer.json was changed."""
    path = write_checkpoint(directory) / "tokenizer.json"
    description = json.loads(path.read_bytes())
    change(description)
    path.write_text(json.dumps(description))
    return Tokenizer(directory)


def with_regex(pattern: str) -> Callable[[Json], object]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return lambda description: description.update(pre_tokenizer=split)


def nested_decoder(description: Json) -> None:
    decoder: Json = {"type": "Fuse"}
    for _ in range(150):
        decoder = {"type": "Sequence", "decoders": [decoder]}
    description["decoder"] = decoder


def add_token(content: str, token_id: int) -> Callable[[Json], object]:
    def change(description: Json) -> None:
        description["added_tokens"].append(
            {**description["added_tokens"][0], "content": content, "id": token_id}
        )

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["model"]["vocab"].update(zzz=2**31 - 1), "largest token id is 2147483647, more than"),
        (lambda d: d["model"]["vocab"].update(zzz=2**32 - 1), "largest token id is 4294967295, more than"),
        (lambda d: d["model"]["vocab"].update(zzz=2**20), "more than 65536 ids are unused"),
        (lambda d: d["model"]["vocab"].update(zzz=2**40), "expected u32"),
        (lambda d: d["model"]["vocab"].update(zzz=-1), "expected u32"),
        (lambda d: d["model"]["merges"].append(["never", "seen"]), "out of vocabulary"),
        (lambda d: d["model"].update(unk_token=7), "unk_token"),
        (lambda d: d.update(model=7), "model"),
        (lambda d: d.update(decoder=[]), "decoder"),
        (nested_decoder, "recursion limit"),
        (with_regex("(a"), "parenthes"),
    ],
)
def test_a_wrong_tokenizer_is_refused_by_name(
    tmp_path: Path, change: Callable[[Json], object], words: str
) -> None:
    with pytest.raises(ModelLoadError, match=words) as caught:
        load(tmp_path, change)
    assert str(tmp_path / "tokenizer.json") in str(caught.value)


def test_added_tokens_that_begin_each_other_without_end_are_refused(tmp_path: Path) -> None:
    def change(description: Json) -> None:
        for size in range(2, 3000):
            add_token("<" * size, 387 + size)(description)

    with pytest.raises(ModelLoadError, match="nested too deeply"):
        load(tmp_path, change)


@pytest.mark.parametrize("token_id", [3, 2**31 - 1])
def test_added_tokens_take_the_next_id_whatever_the_file_says(tmp_path: Path, token_id: int) -> None:
    loaded = load(tmp_path, add_token("<|zzz|>", token_id))
    (found,) = loaded.encode("<|zzz|>", False, parse_special_tokens=True)
    assert found == loaded.vocab_size - 1
    assert loaded.vocab_size < 1000


def test_two_tokens_may_have_one_id(tmp_path: Path) -> None:
    loaded = load(tmp_path, lambda d: d["model"]["vocab"].update(zzz=5))
    assert loaded.decode(loaded.encode("Hello")) == "Hello"


def test_too_many_merges_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "MAX_MERGES", 3)
    with pytest.raises(ModelLoadError, match="more than 3 merges"):
        load(tmp_path, lambda _: None)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_files_beyond_the_limit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = write_checkpoint(tmp_path) / name
    monkeypatch.setattr(files, "MAX_FILE_BYTES", path.stat().st_size)
    assert files.read_file(path)
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(ModelLoadError, match=f"{name} is larger than the limit"):
        files.read_json(path)


@pytest.mark.parametrize("text", [b'{"\\ud800": 1}', b'{"chat_template": "\\udfff"}', b'["\xed\xa0\x80"]'])
def test_half_a_surrogate_pair_is_refused_where_it_is_read(tmp_path: Path, text: bytes) -> None:
    path = write_checkpoint(tmp_path) / "tokenizer_config.json"
    path.write_bytes(text)
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json: .*surrogates not allowed"):
        files.read_json(path)
    path.write_text('{"text": "\\ud83d\\ude42"}')
    assert files.read_json(path) == {"text": "\U0001f642"}


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(ModelLoadError, match="not a regular file"):
        Tokenizer(tmp_path)


def test_a_template_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    loaded = Tokenizer(write_checkpoint(tmp_path))
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelLoadError, match=r"chat_template\.jinja"):
        template_sources(tmp_path, loaded)


def test_a_text_that_the_library_panics_on_is_a_bad_request(tmp_path: Path) -> None:
    loaded = load(tmp_path, with_regex("(a+)+$"))
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match=r"failed on the text: .*retry-limit") as caught:
            loaded.encode("a" * 60 + "b")
        assert caught.value.status == 400
    assert loaded.decode(loaded.encode("Hello")) == "Hello"


class Panic(BaseException):
    """As the library's own: no Exception."""


Panic.__name__ = "PanicException"


class Broken:
    """A library's object that raises in every call."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Callable[..., object]:
        def fail(*_: object, **__: object) -> object:
            raise self._error

        return fail


@pytest.mark.parametrize(
    "method", ["added_tokens", "vocab", "add_tokens", "encode", "add_special_tokens_to", "decode"]
)
@pytest.mark.parametrize("error", [Panic("why"), ValueError("why")])
def test_no_call_lets_a_panic_through(method: str, error: BaseException) -> None:
    library = tokenizer_library.LibraryTokenizer(byte_level().to_str().encode())
    library._raw = Broken(error)  # type: ignore[assignment]
    arguments = () if method in ("added_tokens", "vocab") else ("a",)
    with pytest.raises(InvalidRequestError, match=r"the tokenizer failed on the .*: why"):
        getattr(library, method)(*arguments)


def test_an_interrupt_is_no_fault_of_the_library() -> None:
    library = tokenizer_library.LibraryTokenizer(byte_level().to_str().encode())
    library._raw = Broken(KeyboardInterrupt())  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        library.encode("a")


def test_what_panics_while_loading_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Panicking:
        from_buffer = staticmethod(Broken(Panic("why")).from_buffer)

    monkeypatch.setattr(tokenizer_library, "RawTokenizer", Panicking)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json: the tokenizer failed on the file: why"):
        Tokenizer(write_checkpoint(tmp_path, sentencepiece()))


QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize(("pattern", "is_known"), [(QWEN, True), ("(a+)+$", False)])
async def test_patterns_that_may_backtrack_are_kept_off_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, is_known: bool
) -> None:
    loaded, threads = load(tmp_path, with_regex(pattern)), []
    encode = tokenizer_library.LibraryTokenizer.encode

    def spy(self: tokenizer_library.LibraryTokenizer, text: str) -> object:
        threads.append(threading.current_thread() is threading.main_thread())
        return encode(self, text)

    monkeypatch.setattr(tokenizer_library.LibraryTokenizer, "encode", spy)
    await loaded.encode_async("Hello")
    await spell_bad_words(SamplingParams(bad_words=("Hello",)), loaded)
    assert set(threads) == {is_known}


def test_patterns_are_found_wherever_they_are() -> None:
    inner = {
        "type": "Sequence",
        "normalizers": [{"type": "Replace", "pattern": {"Regex": "(a+)+"}, "content": ""}],
    }
    assert has_unknown_pattern([{"type": "Sequence", "normalizers": [inner]}, None])
    assert not has_unknown_pattern([{"type": "Replace", "pattern": {"String": "(a+)+"}, "content": ""}, None])


def test_text_that_is_not_utf8_anywhere_in_the_file_is_refused_by_name(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path) / "tokenizer.json"
    description = path.read_bytes()
    path.write_bytes(
        json.dumps({**json.loads(description), "normalizer": "?"}).encode().replace(b"?", b"\xc0")
    )
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json: .*utf-8"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("token_id", [5000, 2**31])
def test_a_post_processor_that_adds_no_token_is_refused(tmp_path: Path, token_id: int) -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [token_id], "tokens": ["<s>"]}},
    }
    with pytest.raises(ModelLoadError, match=f"post-processor adds the token id {token_id}"):
        load(tmp_path, lambda d: d.update(post_processor=template))
