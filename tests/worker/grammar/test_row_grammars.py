"""Rows follow their grammar: alone, resumed, beside others, beside other masks; failures stay their own."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from llguidance import LLMatcher, LLParserLimits

from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.frontend.text.grammar.bounded_thoughts import Budget, free_with_budget
from splitserve.worker.batch.sampling_state import Feature
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.grammar import compiler as compiler_module
from splitserve.worker.grammar.compiler import GrammarCompiler
from splitserve.worker.sampling.sampler import Sampled, Sampler
from tests.worker.runner.checkpoints import EOS, VOCAB, tokenizer
from tests.worker.sampling.rows import Row, make_batch

TOKENIZER = tokenizer()
REGEX = "a[0-9]{3}b"


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    folder = tmp_path_factory.mktemp("tokenizer")
    TOKENIZER.save(str(folder / "tokenizer.json"))
    return GrammarCompiler(str(folder), VOCAB, [EOS])


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def like(pattern: str, **fields: object) -> SequenceSampling:
    return SequenceSampling(seed=7, grammar=LLMatcher.grammar_from_regex(pattern), **fields)  # type: ignore[arg-type]


class Bench:
    """A batch that is sampled from random logits, step after step."""

    def __init__(self, compiler: GrammarCompiler, *rows: Row) -> None:
        self.batch = make_batch(rows, VOCAB, EOS)
        self.sampler = Sampler(CpuDevice(), self.batch, compiler)
        self.outputs = [list(row.output) for row in rows]
        self._chance = torch.Generator().manual_seed(1)
        # As many draws as a resumed row has behind it, so that it meets the same logits.
        for _ in range(max(len(row.output) for row in rows)):
            self._logits()

    def _logits(self) -> torch.Tensor:
        return torch.randn(1, VOCAB, generator=self._chance)

    def step(self) -> Sampled:
        rows = np.array([i for i in range(len(self.outputs)) if i not in self.batch.failures], np.int32)
        sampled = self.sampler.sample(self._logits().repeat(len(rows), 1), rows)
        self.batch.append(sampled.rows, sampled.token_ids)
        self.sampler.took(sampled.rows, sampled.token_ids)
        for row, token_id in zip(sampled.rows.tolist(), sampled.token_ids.tolist(), strict=True):
            self.outputs[row].append(token_id)
        for error in sampled.errors:
            self.batch.fail(error)
        return sampled

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            assert self.step().errors == []

    def text(self, row: int) -> str:
        return TOKENIZER.decode([token_id for token_id in self.outputs[row] if token_id != EOS])


def test_a_row_writes_what_its_grammar_allows_and_then_ends(compiler: GrammarCompiler) -> None:
    bench = Bench(compiler, Row(like(REGEX)))
    bench.run(8)
    assert re.fullmatch(REGEX, bench.text(0))
    assert bench.outputs[0][5:] == [EOS] * 3


def test_without_a_grammar_the_same_logits_give_something_else(compiler: GrammarCompiler) -> None:
    bench = Bench(compiler, Row(SequenceSampling(seed=7)))
    bench.run(8)
    assert not re.fullmatch(REGEX, bench.text(0))


def test_rows_beside_each_other_do_not_change_each_other(compiler: GrammarCompiler) -> None:
    rows = [Row(like(REGEX)), Row(SequenceSampling(seed=3)), Row(like("x{2}|y+z")), Row(like("[^a]*"))]
    together = Bench(compiler, *rows)
    together.run(8)
    for i, row in enumerate(rows):
        alone = Bench(compiler, row)
        alone.run(8)
        assert alone.outputs == [together.outputs[i]]


@pytest.mark.parametrize("with_ids", [False, True])
def test_masks_that_are_sent_to_a_device_say_what_shared_ones_say(
    compiler: GrammarCompiler, with_ids: bool
) -> None:
    rows = [Row(SequenceSampling(seed=3)), Row(like(REGEX)), Row(like("[^a]*"))]
    if with_ids:
        rows.append(Row(SequenceSampling(seed=4, allowed_token_ids=tuple(ids("abc")))))
    shared, sent = Bench(compiler, *rows), Bench(compiler, *rows)
    masks = sent.sampler._masks
    masks._is_shared, masks._table = False, None
    for bench in (shared, sent):
        bench.run(8)
    assert sent.outputs == shared.outputs
    # Rows without a grammar keep their masks on the device.
    assert (masks._table is not None) == with_ids


@pytest.mark.parametrize("num_before", range(1, 7))
def test_a_resumed_row_goes_on_as_if_nothing_had_happened(compiler: GrammarCompiler, num_before: int) -> None:
    whole = Bench(compiler, Row(like(REGEX)))
    whole.run(7)
    resumed = Bench(compiler, Row(like(REGEX), output=whole.outputs[0][:num_before]))
    resumed.run(7 - num_before)
    assert resumed.outputs == whole.outputs


def test_a_row_that_is_used_again_starts_with_its_own_grammar(compiler: GrammarCompiler) -> None:
    first = Bench(compiler, Row(like(REGEX)))
    first.run(3)
    state = first.batch.sampling
    state.discard(0)
    assert not state.grammars
    state.add(0, like("zz"), 2, 2)
    first.batch.num_tokens[0] = 2
    first.outputs[0].clear()
    first.run(3)
    assert first.text(0) == "zz"


def test_allowed_token_ids_hold_beside_a_grammar(compiler: GrammarCompiler) -> None:
    allowed = (*ids("ab5"), EOS)
    bench = Bench(compiler, Row(like(REGEX, allowed_token_ids=allowed)), Row(like(REGEX)))
    bench.run(6)
    assert bench.text(0) == "a555b"
    assert bench.text(1) != "a555b"


def test_masks_that_leave_nothing_fail_the_row_alone(compiler: GrammarCompiler) -> None:
    bench = Bench(compiler, Row(like(REGEX, allowed_token_ids=tuple(ids("x")))), Row(like(REGEX)))
    (error,) = bench.step().errors
    assert (error.row, error.code, error.status) == (0, "no_token_left", 400)
    bench.run(5)
    assert re.fullmatch(REGEX, bench.text(1))


def test_min_tokens_go_on_where_the_grammar_can(compiler: GrammarCompiler) -> None:
    bench = Bench(compiler, Row(like("[ab]*", min_tokens=6)))
    bench.run(6)
    assert len(bench.text(0)) == 6


def test_min_tokens_give_way_where_the_grammar_ends(compiler: GrammarCompiler) -> None:
    bench = Bench(compiler, Row(like("ab", min_tokens=6)))
    bench.run(4)
    assert bench.outputs[0] == [*ids("ab"), EOS, EOS]
    assert not bench.batch.sampling.features[0] & Feature.MIN_TOKENS


def test_a_grammar_that_cannot_be_compiled_fails_the_row_alone(compiler: GrammarCompiler) -> None:
    bench = Bench(compiler, Row(SequenceSampling(seed=1, grammar="start: nobody")), Row(like(REGEX)))
    (error,) = bench.step().errors
    assert (error.row, error.code, error.status) == (0, "invalid_grammar", 400)
    assert 'unknown name: "nobody"' in error.message
    bench.run(4)
    assert re.fullmatch(REGEX, bench.text(1))


def test_a_matcher_that_cannot_go_on_fails_the_row_alone(compiler: GrammarCompiler) -> None:
    strays = Row(like(REGEX), output=ids("q"))
    bench = Bench(compiler, strays, Row(like("[0-9]+"), output=ids("1")))
    (error,) = bench.step().errors
    assert (error.row, error.code, error.status) == (0, "grammar_failed", 400)
    assert "doesn't satisfy the grammar" in error.message
    bench.run(3)


def test_an_unexpected_error_of_a_matcher_fails_the_row_alone(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = GrammarCompiler.matcher

    def matcher(self: GrammarCompiler, grammar: str) -> LLMatcher:
        if "q" in grammar:
            raise ValueError("scripted")
        return real(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "matcher", matcher)
    bench = Bench(compiler, Row(like("q+")), Row(like(REGEX)))
    (error,) = bench.step().errors
    assert (error.row, error.code, error.status) == (0, "request_failed", 500)
    bench.run(4)
    assert re.fullmatch(REGEX, bench.text(1))


def test_a_mask_that_takes_too_much_work_fails_the_row_alone(compiler: GrammarCompiler) -> None:
    # The first mask is easy.
    bench = Bench(compiler, Row(like("x(a?){300}a{300}")), Row(SequenceSampling(seed=1)))
    errors = [error for _ in range(4) for error in bench.step().errors]
    assert errors
    assert all((error.row, error.code, error.status) == (0, "grammar_failed", 400) for error in errors)
    assert "too many expressions constructed" in errors[0].message
    assert "verbose" not in errors[0].message
    assert len(bench.outputs[1]) == 4


def test_a_first_mask_that_takes_too_much_work_is_no_grammar(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = LLParserLimits(step_max_items=1, verbose_errors=False)
    monkeypatch.setattr(compiler_module, "parser_limits", lambda: limits)
    # Not compiled before, so that these limits hold.
    grammar = 'start: a*\na: "x" | "y" a | b\nb: "z" b "q" | "x"'
    bench = Bench(compiler, Row(SequenceSampling(seed=1, grammar=grammar)), Row(SequenceSampling(seed=1)))
    (error,) = bench.step().errors
    assert (error.row, error.code, error.status) == (0, "invalid_grammar", 400)
    assert "Too many items (limit 1" in error.message
    assert "verbose" not in error.message
    bench.run(3)


def test_greedy_logprobs_are_those_of_the_model(compiler: GrammarCompiler) -> None:
    bench = Bench(compiler, Row(like(REGEX, temperature=0.0, logprobs=0)))
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1))
    expected = torch.log_softmax(logits[0].double(), 0)[ids("a")[0]]
    (entry,) = bench.step().logprobs
    assert np.frombuffer(entry.logprobs, "<f4")[0] == pytest.approx(float(expected), abs=1e-5)


def test_tokens_beyond_the_tokenizer_are_never_drawn(compiler: GrammarCompiler) -> None:
    bench = Bench(compiler, Row(like("(.|\n)*", min_tokens=30)))
    bench.run(30)
    assert max(bench.outputs[0]) < TOKENIZER.get_vocab_size()


def test_special_tokens_of_the_grammar_are_drawn_as_such(compiler: GrammarCompiler) -> None:
    grammar = 'start: <think> /[a-c]{2}/ </think> "x"'
    bench = Bench(compiler, Row(SequenceSampling(seed=2, grammar=grammar)))
    bench.run(6)
    think, end = TOKENIZER.token_to_id("<think>"), TOKENIZER.token_to_id("</think>")
    output = bench.outputs[0]
    assert (output[0], output[3], output[5]) == (think, end, EOS)


def test_reasoning_ends_where_its_budget_does(compiler: GrammarCompiler) -> None:
    begin, end = (TOKENIZER.encode(tag, add_special_tokens=False).ids[0] for tag in ("<think>", "</think>"))
    budget = Budget(4, (begin,), end, "", (EOS,))
    sampling = SequenceSampling(
        seed=3, grammar=free_with_budget(budget, is_open=True), logit_bias={end: -100.0}
    )
    bench = Bench(compiler, Row(sampling))
    bench.run(9)
    alone = bench.outputs[0]
    assert alone.index(end) == 4
    # A row that goes on elsewhere is counted from its beginning.
    resumed = Bench(compiler, Row(sampling, output=alone[:2]))
    resumed.run(7)
    assert resumed.outputs[0] == alone


def test_the_grammar_of_a_checkpoint_without_tokenizer_is_refused(tmp_path: Path) -> None:
    bench = Bench(GrammarCompiler(str(tmp_path), VOCAB, [EOS]), Row(like(REGEX)))
    (error,) = bench.step().errors
    assert error.status == 400
    assert "tokenizer.json" in error.message


def test_the_grammar_of_a_model_that_never_ends_is_refused(tmp_path: Path) -> None:
    bench = Bench(GrammarCompiler(str(tmp_path), VOCAB, []), Row(like(REGEX)))
    (error,) = bench.step().errors
    assert "no end-of-sequence token" in error.message


def test_allowed_token_ids_that_left_unsampled_leave_nothing_behind(compiler: GrammarCompiler) -> None:
    bench = Bench(compiler, Row(SequenceSampling(seed=1, allowed_token_ids=(7,))))
    bench.batch.sampling.discard(0)
    bench.batch.sampling.add(0, like("zz"), 2, 2)
    bench.run(3)
    assert bench.text(0) == "zz"


def test_a_draft_under_a_mask_waits_for_the_thread_that_writes_masks(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its row may have been one with a grammar a step ago.
    bench = Bench(compiler, Row(SequenceSampling(allowed_token_ids=(5, 9))))
    waited = []
    monkeypatch.setattr(bench.sampler.grammars, "wait", lambda: waited.append(True))
    (token_id,) = bench.sampler.draw(bench._logits(), np.zeros(1, np.int32), bench.batch.num_tokens[:1])
    assert waited
    assert token_id in (5, 9)
