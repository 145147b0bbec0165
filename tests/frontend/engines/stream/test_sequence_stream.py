"""Deltas of text out of tokens: stop strings, min_tokens, logprobs, finish reasons, n sequences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from splitserve.engine_core.errors import EngineUnavailableError, ProtocolError
from splitserve.engine_core.ipc.messages import Drafted, FinishReason, StepOutputs
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.connection.session import EngineSession
from splitserve.frontend.engines.generation import OutputDelta
from splitserve.frontend.engines.stream.sequence_stream import SequenceStream
from splitserve.frontend.text.stop_strings import StopMatcher
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.frontend.checkpoints import byte_level, write_checkpoint
from tests.frontend.engines.messages import add, end, logprob, outputs, ready, tokens


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_checkpoint(tmp_path_factory.mktemp("model"), byte_level()))


class Rig:
    """One sequence: a session that gets messages, and its stream."""

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams, num_prompt_tokens: int = 2) -> None:
        self.session = EngineSession("f", "0")
        self.session.receive(ready(), 0.0)
        self.source = self.session.open(add(1, num_prompt_tokens), lambda: None)
        self.stream = SequenceStream(0, self.source, sampling, [0] * num_prompt_tokens, tokenizer)

    def feed(self, *messages: StepOutputs) -> list[OutputDelta]:
        deltas = []
        for message in messages:
            self.session.receive(message, 0.0)
            delta = self.stream.take()
            if delta is not None:
                deltas.append(delta)
        return deltas

    def feed_text(
        self, tokenizer: Tokenizer, text: str, sizes: list[int], reason: FinishReason
    ) -> list[OutputDelta]:
        """Send the text's tokens in messages of these sizes until the stream has ended."""
        token_ids, first, deltas = tokenizer.encode(text), 0, []
        for size in [*sizes, len(token_ids)]:
            deltas += self.feed(tokens(1, token_ids[first : first + size], first))
            first = min(first + size, len(token_ids))
            if self.stream.finished:
                return deltas
        return deltas + self.feed(outputs([], [end(1, reason)]))


@pytest.mark.parametrize(("stop", "num_tokens", "counted"), [(None, 9, 5), ("d", 5, 4), ("c", 4, 3)])
def test_drafts_count_as_far_as_they_are_in_the_output(
    tokenizer: Tokenizer, stop: str | None, num_tokens: int, counted: int
) -> None:
    sampling = SamplingParams(stop=(stop,) if stop else (), max_tokens=None)
    rig = Rig(tokenizer, sampling)
    token_ids = tokenizer.encode("ab cdxyz.")
    assert len(token_ids) == 9
    # Three steps of 3, 4 and 2 tokens; the last two arrive together.
    steps = [Drafted(1, 0, 3, 2), Drafted(1, 3, 3, 3), Drafted(1, 7, 2, 0)]
    deltas = rig.feed(
        replace(tokens(1, token_ids[:3], 0), drafted=steps[:1]),
        replace(tokens(1, token_ids[3:], 3), drafted=steps[1:]),
    )
    if stop is None:
        deltas += rig.feed(outputs([], [end(1, FinishReason.LENGTH)]))
    assert len(ids_of(deltas)) == num_tokens
    assert (deltas[-1].num_draft_tokens, deltas[-1].num_accepted_draft_tokens) == (8, counted)


def text_of(deltas: list[OutputDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def ids_of(deltas: list[OutputDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


@given(data=st.data(), text=st.text("helo wTd🙂é\n", max_size=40), sizes=st.lists(st.integers(0, 4)))
def test_streamed_text_is_the_decoded_text(
    tokenizer: Tokenizer, data: st.DataObject, text: str, sizes: list[int]
) -> None:
    rig = Rig(tokenizer, SamplingParams(max_tokens=None))
    deltas = rig.feed_text(tokenizer, text, sizes, FinishReason.LENGTH)
    assert text_of(deltas) == tokenizer.decode(ids_of(deltas)) == text
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]


@given(
    text=st.text("abEN D🙂", max_size=40),
    stops=st.lists(st.text("abEN D🙂", min_size=1, max_size=4), min_size=1, max_size=3),
    sizes=st.lists(st.integers(0, 3)),
    include=st.booleans(),
)
def test_stop_strings_cut_the_same_text_however_tokens_arrive(
    tokenizer: Tokenizer, text: str, stops: list[str], sizes: list[int], include: bool
) -> None:
    sampling = SamplingParams(stop=tuple(stops), include_stop_str_in_output=include, max_tokens=None)
    deltas = Rig(tokenizer, sampling).feed_text(tokenizer, text, sizes, FinishReason.LENGTH)
    matcher = StopMatcher(stops, include)
    expected = matcher.push(text)
    assert text_of(deltas) == expected.text + matcher.finish()
    assert deltas[-1].stop_reason == expected.matched
    assert deltas[-1].finish_reason == ("stop" if expected.matched else "length")


def test_token_ids_end_with_the_token_that_completed_the_stop_string(tokenizer: Tokenizer) -> None:
    rig = Rig(tokenizer, SamplingParams(stop=("END",), logprobs=1))
    token_ids = tokenizer.encode("xEND and more")
    last = next(i for i in range(len(token_ids) + 1) if "END" in tokenizer.decode(token_ids[:i]))
    message = tokens(1, token_ids)
    entries = [logprob(1, i, token_id) for i, token_id in enumerate(token_ids)]
    rig.source.logprobs.extend(entries)
    (delta,) = rig.feed(message)
    assert (delta.text, delta.token_ids, delta.stop_reason) == ("x", token_ids[:last], "END")
    assert len(delta.logprobs) == last
    assert rig.stream.stopped_here


def test_a_stop_string_found_at_the_end_needs_no_abort(tokenizer: Tokenizer) -> None:
    rig = Rig(tokenizer, SamplingParams(stop=("END",)))
    token_ids = tokenizer.encode("xEND")
    rows = [(1, token_id, i) for i, token_id in enumerate(token_ids)]
    (delta,) = rig.feed(outputs(rows, [end(1, FinishReason.LENGTH)]))
    assert (delta.text, delta.finish_reason) == ("x", "stop")
    assert not rig.stream.stopped_here


def test_min_tokens_delays_stop_strings(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("ababab")
    assert len(token_ids) == 6
    for min_tokens, expected in ((0, ""), (1, ""), (2, "a"), (3, "ab"), (4, "aba")):
        rig = Rig(tokenizer, SamplingParams(stop=("a", "b"), min_tokens=min_tokens))
        deltas = rig.feed(tokens(1, token_ids))
        assert text_of(deltas) == expected
        assert len(ids_of(deltas)) == max(1, min_tokens)


def test_a_stop_string_may_begin_before_min_tokens(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("Hello world")
    texts = [tokenizer.decode(token_ids[:size]) for size in range(len(token_ids) + 1)]
    last = next(size for size, text in enumerate(texts) if "ello w" in text)
    for min_tokens in range(last + 1):
        rig = Rig(tokenizer, SamplingParams(stop=("ello w",), min_tokens=min_tokens))
        deltas = rig.feed(*(tokens(1, [token_id], i) for i, token_id in enumerate(token_ids)))
        assert (text_of(deltas), len(ids_of(deltas))) == ("H", last)
        assert deltas[-1].stop_reason == "ello w"


def test_a_stop_string_complete_before_min_tokens_is_text(tokenizer: Tokenizer) -> None:
    rig = Rig(tokenizer, SamplingParams(stop=("ab",), min_tokens=3))
    assert text_of(rig.feed(tokens(1, tokenizer.encode("abcab")))) == "abc"


def test_an_output_that_ends_before_min_tokens_matches_nothing(tokenizer: Tokenizer) -> None:
    rig = Rig(tokenizer, SamplingParams(stop=("\ufffd",), min_tokens=9))
    half = tokenizer.encode("🙂")[0]
    (delta,) = rig.feed(outputs([(1, half, 0)], [end(1, FinishReason.LENGTH)]))
    assert (delta.text, delta.finish_reason) == ("\ufffd", "length")


def test_an_output_cut_inside_a_character_ends_in_a_replacement_character(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("hi 🙂")[:-1]
    deltas = Rig(tokenizer, SamplingParams()).feed(
        tokens(1, token_ids), outputs([], [end(1, FinishReason.LENGTH)])
    )
    assert [delta.text for delta in deltas] == ["hi ", "\ufffd"]
    assert text_of(deltas) == tokenizer.decode(token_ids)


@pytest.mark.parametrize(("include", "text"), [(False, "hi"), (True, "hi!")])
def test_the_stop_token_is_no_part_of_the_text(tokenizer: Tokenizer, include: bool, text: str) -> None:
    token_ids = tokenizer.encode("hi!")
    sampling = SamplingParams(stop_token_ids=(token_ids[-1],), include_stop_str_in_output=include)
    rig = Rig(tokenizer, sampling)
    rows = [(1, token_id, i) for i, token_id in enumerate(token_ids)]
    (delta,) = rig.feed(outputs(rows, [end(1, FinishReason.STOP, token_ids[-1])]))
    assert (delta.text, delta.token_ids) == (text, token_ids)
    assert (delta.finish_reason, delta.stop_reason) == ("stop", token_ids[-1])


def test_eos_has_no_stop_reason(tokenizer: Tokenizer) -> None:
    eos_id = tokenizer.special_tokens["<|im_end|>"]
    (delta,) = Rig(tokenizer, SamplingParams(skip_special_tokens=False)).feed(
        outputs([(1, eos_id, 0)], [end(1, FinishReason.STOP)])
    )
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ("", "stop", None)


def test_tokens_join_while_nobody_reads(tokenizer: Tokenizer) -> None:
    rig = Rig(tokenizer, SamplingParams())
    token_ids = tokenizer.encode("Hello world")
    for i, token_id in enumerate(token_ids):
        rig.session.receive(tokens(1, [token_id], i), 0.0)
    delta = rig.stream.take()
    assert delta is not None
    assert (delta.text, delta.token_ids) == ("Hello world", token_ids)
    assert rig.stream.take() is None


def test_what_is_over_the_limit_waits_with_its_logprobs_and_the_end(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("Hello world")
    rig = Rig(tokenizer, SamplingParams(logprobs=1))
    entries = [logprob(1, i, token_id) for i, token_id in enumerate(token_ids)]
    rows = [(1, token_id, i) for i, token_id in enumerate(token_ids)]
    rig.session.receive(outputs(rows, [end(1)], logprobs=entries), 0.0)
    deltas = []
    while rig.stream.behind:
        delta = rig.stream.take(max_tokens=2)
        assert delta is not None
        assert [entry.token_id for entry in delta.logprobs] == delta.token_ids
        deltas.append(delta)
    assert max(len(delta.token_ids) for delta in deltas) == 2
    assert (text_of(deltas), rig.stream.finished) == ("Hello world", True)
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)


@pytest.mark.parametrize("index", [-1, 2])
def test_logprobs_of_no_prompt_token_end_the_request(tokenizer: Tokenizer, index: int) -> None:
    rig = Rig(tokenizer, SamplingParams(prompt_logprobs=1))
    with pytest.raises(ProtocolError):
        rig.feed(outputs([], prompt_logprobs=[logprob(1, index, 4)]))
    assert not rig.session.sequences


def test_logprobs_stay_beside_their_tokens(tokenizer: Tokenizer) -> None:
    rig = Rig(tokenizer, SamplingParams(logprobs=2))
    deltas = rig.feed(
        outputs([(1, 5, 0), (1, 6, 1)], logprobs=[logprob(1, 0, 5), logprob(1, 1, 6, -0.75)]),
        outputs([(1, 7, 2)], [end(1)], logprobs=[logprob(1, 2, 7)]),
    )
    assert [[entry.token_id for entry in delta.logprobs] for delta in deltas] == [[5, 6], [7]]
    entry = deltas[0].logprobs[1]
    assert (entry.logprob, entry.rank, entry.top) == (-0.75, 2, [(9, -0.25), (8, -1.0)])


def test_logprobs_that_do_not_fit_are_a_protocol_error(tokenizer: Tokenizer) -> None:
    for entries in ([], [logprob(1, 1, 5)]):
        rig = Rig(tokenizer, SamplingParams(logprobs=1))
        with pytest.raises(ProtocolError):
            rig.feed(outputs([(1, 5, 0)], logprobs=entries))


def test_ids_asked_for_are_told_from_the_alternatives(tokenizer: Tokenizer) -> None:
    rig = Rig(tokenizer, SamplingParams(logprobs=1, logprob_token_ids=(8,)))
    (delta,) = rig.feed(outputs([(1, 5, 0)], [end(1)], logprobs=[logprob(1, 0, 5)]))
    (entry,) = delta.logprobs
    assert (entry.top, entry.asked, entry.others) == ([(9, -0.25)], [(8, -1.0)], [(9, -0.25), (8, -1.0)])


@pytest.mark.parametrize("asked", [(7,), (9, 8, 8)])
def test_other_ids_than_asked_for_are_a_protocol_error(tokenizer: Tokenizer, asked: tuple[int, ...]) -> None:
    rig = Rig(tokenizer, SamplingParams(logprobs=0, logprob_token_ids=asked))
    with pytest.raises(ProtocolError):
        rig.feed(outputs([(1, 5, 0)], logprobs=[logprob(1, 0, 5)]))


def test_a_loop_ends_with_repetition_and_all_its_tokens(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("abab")
    rig = Rig(tokenizer, SamplingParams())
    deltas = rig.feed(tokens(1, token_ids), outputs([], [end(1, FinishReason.REPETITION)]))
    assert text_of(deltas) == "abab"
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("repetition", None)


def test_prompt_logprobs_come_once_with_the_first_delta(tokenizer: Tokenizer) -> None:
    rig = Rig(tokenizer, SamplingParams(prompt_logprobs=1), num_prompt_tokens=3)
    deltas = rig.feed(
        outputs([], prompt_logprobs=[logprob(1, 1, 4)]),
        outputs([(1, 5, 0)], prompt_logprobs=[logprob(1, 2, 6)]),
        outputs([(1, 7, 1)], [end(1)]),
    )
    first = deltas[0].prompt_logprobs
    assert first is not None
    assert [entry and entry.token_id for entry in first] == [None, 4, 6]
    assert deltas[1].prompt_logprobs is None


def test_a_lost_engine_raises(tokenizer: Tokenizer) -> None:
    rig = Rig(tokenizer, SamplingParams())
    rig.session.disconnected(1.0)
    with pytest.raises(EngineUnavailableError):
        rig.stream.take()
    assert rig.source.request.prompt_token_ids
    assert not rig.source.token_ids


def test_special_tokens_that_are_kept_have_text(tokenizer: Tokenizer) -> None:
    rig = Rig(tokenizer, SamplingParams())
    kept, skipped = tokenizer.special_tokens["<|im_start|>"], tokenizer.special_tokens["<|endoftext|>"]
    rig.stream = SequenceStream(0, rig.source, SamplingParams(), [0, 0], tokenizer, frozenset([kept]))
    deltas = rig.feed(tokens(1, [kept, skipped, *tokenizer.encode("x")], 0))
    assert text_of(deltas) == "<|im_start|>x"
