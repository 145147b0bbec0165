"""Text behind a prompt is what the prompt's and its tokens together decode to, less the prompt's text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders
from transformers import PreTrainedTokenizerFast

from splitserve.engine_core.checkpoint.config.sampling_defaults import SamplingDefaults
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.beam.answer import make_deltas
from splitserve.frontend.engines.beam.search import Beam, Hypothesis, SearchRules
from splitserve.frontend.engines.connection.session import EngineSession
from splitserve.frontend.engines.generation import GenerationRequest, TokenLogprob
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.engines.stream.sequence_stream import SequenceStream
from splitserve.frontend.openai.answers.text_offsets import TextOffsets, prompt_offsets
from splitserve.frontend.text.model_assets import ModelAssets
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.frontend.checkpoints import KINDS, metaspace, wordpiece, write_checkpoint
from tests.frontend.engines.messages import MODEL, add, ready, tokens
from tests.frontend.text.conftest import TokenizerOf

TEXT = st.text(st.sampled_from("helo wTthe äöü你好🙂\n#."), max_size=20)
WORDS = st.lists(st.sampled_from(["hello", "world", "the", "o", "."]), max_size=8).map(" ".join)


def metaspace_of(scheme: str) -> Callable[[], RawTokenizer]:
    def make() -> RawTokenizer:
        made = metaspace()
        made.decoder = decoders.Metaspace(prepend_scheme=scheme, split=False)
        return made

    return make


def with_cleanup() -> RawTokenizer:
    made = wordpiece()
    made.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return made


MAKERS = {
    **KINDS,
    "metaspace_always": metaspace_of("always"),
    "metaspace_never": metaspace_of("never"),
    "wordpiece_cleanup": with_cleanup,
}
Pair = tuple[Tokenizer, PreTrainedTokenizerFast]


@pytest.fixture(scope="module")
def pair_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    def load(kind: str) -> Pair:
        directory = write_checkpoint(tmp_path_factory.mktemp(kind), MAKERS[kind]())
        theirs = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
        return Tokenizer(directory), theirs

    return cache(load)


@pytest.mark.parametrize("kind", MAKERS)
@given(data=st.data(), skip=st.booleans())
def test_what_follows_a_prompt_equals_transformers(
    pair_of: Callable[[str], Pair], kind: str, data: st.DataObject, skip: bool
) -> None:
    ours, theirs = pair_of(kind)
    texts = WORDS if kind.startswith("wordpiece") else TEXT
    prompt = ours.encode(data.draw(texts), data.draw(st.booleans()))
    output = ours.encode(data.draw(texts), False)

    def text_of(token_ids: list[int]) -> str:
        return theirs.decode(token_ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)

    detokenizer = ours.detokenizer(skip, prompt)
    found = "".join([detokenizer.push([token_id]) for token_id in output]) + detokenizer.finish()
    assert found == text_of(prompt + output)[len(text_of(prompt)) :]


@pytest.mark.parametrize("kind", ["sentencepiece", "metaspace"])
def test_the_first_word_keeps_its_space_behind_a_prompt(tokenizer_of: TokenizerOf, kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    prompt, output = tokenizer.encode("hello"), tokenizer.encode("the", False)
    assert tokenizer.token_name(output[0]) == "▁the"
    assert tokenizer.detokenizer(True, prompt).push(output) == " the"
    assert tokenizer.detokenizer(True, []).push(output) == "the"
    # Behind nothing but BOS a text begins, if BOS is hidden.
    assert tokenizer.detokenizer(True, prompt[:1]).push(output) == "the"


@pytest.mark.parametrize("kind", ["sentencepiece", "metaspace"])
def test_native_code_can_have_a_text_behind_a_prompt_at_once(tokenizer_of: TokenizerOf, kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    assert tokenizer.detokenizer(True, tokenizer.encode("hello")).state() is not None
    assert tokenizer.detokenizer(True, []).state() is None


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@given(data=st.data())
def test_a_character_that_the_prompt_leaves_unfinished_comes_whole(
    tokenizer_of: TokenizerOf, kind: str, data: st.DataObject
) -> None:
    tokenizer = tokenizer_of(kind)
    token_ids = tokenizer.encode(data.draw(st.sampled_from(["a🙂b", "ä界b", "🙂🙂"])), False)
    size = data.draw(st.integers(1, len(token_ids)))
    prompt = tokenizer.detokenizer()
    shown = prompt.push(token_ids[:size])
    output = tokenizer.detokenizer(True, token_ids[:size])
    rest = output.push(token_ids[size:]) + output.finish()
    assert shown + rest == tokenizer.decode(token_ids)


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if "wordpiece" not in kind])
@given(data=st.data())
def test_offsets_of_an_echo_point_at_the_tokens(
    pair_of: Callable[[str], Pair], kind: str, data: st.DataObject
) -> None:
    tokenizer, _ = pair_of(kind)
    text = data.draw(st.text("helo wTth", max_size=20))
    token_ids = tokenizer.encode(text)
    offsets = list(prompt_offsets(tokenizer, token_ids, text))
    assert offsets == sorted(offsets)
    for token_id, offset in zip(token_ids, offsets, strict=True):
        piece = tokenizer.token_text(token_id).text
        hidden = token_id in tokenizer.special_ids and piece not in text
        assert hidden or text[offset:].startswith((piece, piece.lstrip(" ")))


@pytest.mark.parametrize("text", ["<s>hello the", "hello</s>the"])
def test_special_tokens_that_are_seen_count_in_offsets(tokenizer_of: TokenizerOf, text: str) -> None:
    tokenizer = tokenizer_of("sentencepiece")
    token_ids = tokenizer.encode(text, False, parse_special_tokens=True)
    place = next(i for i, token_id in enumerate(token_ids) if tokenizer.token_name(token_id) == "▁the")
    echoed = tokenizer.decode(token_ids, skip_special_tokens=False)
    for shown, written in ((text, text), (echoed, None)):
        offset = list(prompt_offsets(tokenizer, token_ids, written))[place]
        assert shown[offset:].lstrip(" ").startswith("the")


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_of_the_output_count_in_offsets_if_they_are_shown(
    tokenizer_of: TokenizerOf, skip: bool
) -> None:
    tokenizer = tokenizer_of("byte_level")
    prompt = tokenizer.encode("hello")
    token_ids = tokenizer.encode("<|im_end|>T", False, parse_special_tokens=True)
    offsets = TextOffsets(tokenizer.detokenizer(skip, prompt), 7)
    assert [offsets.take(token_id) for token_id in token_ids] == [7, 7 if skip else 7 + len("<|im_end|>")]


def test_a_stop_string_may_begin_with_the_space_of_the_first_word(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("sentencepiece")
    session = EngineSession("f", "0")
    session.receive(ready(), 0.0)
    source = session.open(add(1), lambda: None)
    stream = SequenceStream(0, source, SamplingParams(stop=(" the",)), tokenizer.encode("hello"), tokenizer)
    session.receive(tokens(1, tokenizer.encode("the", False)), 0.0)
    delta = stream.take()
    assert delta is not None
    assert (delta.text, delta.stop_reason) == ("", " the")


def test_the_outputs_of_a_beam_search_keep_the_space_of_their_first_word(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("sentencepiece")
    sampling = SamplingParams(use_beam_search=True, n=1, max_tokens=1)
    request = GenerationRequest("r", tokenizer.encode("hello"), sampling)
    assets = ModelAssets(tokenizer, None, SamplingDefaults(), (), 512, tokenizer.vocab_size)
    served = ServedModel(("m",), MODEL, assets, 1, 8, 20, 0)
    beam = Beam(0.0, tuple(TokenLogprob(i, -1.0, 1, [], []) for i in tokenizer.encode("the", False)))
    first = EngineSession("f", "0")
    first.receive(ready(), 0.0)
    source = first.open(add(1), lambda: None)
    rules = SearchRules(width=1, max_tokens=1)
    (delta,) = make_deltas(request, served, rules, [Hypothesis(0.0, beam)], source)
    assert delta.text == " the"
