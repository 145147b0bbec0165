"""Drafts of rows with a grammar: each place has a mask of its own, and what is drawn is the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from splitserve.worker.batch.runs import Runs
from splitserve.worker.batch.sampling_state import Feature
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.grammar.compiler import GrammarCompiler
from splitserve.worker.grammar.draft_masks import MAX_DRAFT_MASKS
from splitserve.worker.grammar.told_grammars import ToldGrammars
from splitserve.worker.ops.columns import Int32
from splitserve.worker.sampling.sampler import Sampled, Sampler
from tests.worker.grammar.test_row_grammars import TOKENIZER, ids, like
from tests.worker.runner.checkpoints import EOS, VOCAB
from tests.worker.sampling.rows import Row, make_batch


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    folder = tmp_path_factory.mktemp("tokenizer")
    TOKENIZER.save(str(folder / "tokenizer.json"))
    return GrammarCompiler(str(folder), VOCAB, [EOS])


class Bench:
    """Rows whose logits depend on their place alone."""

    def __init__(self, compiler: GrammarCompiler, *rows: Row) -> None:
        self.batch = make_batch(rows, VOCAB, EOS)
        self.sampler = Sampler(CpuDevice(), self.batch, compiler)
        self.grammars = self.sampler.grammars
        self.told = ToldGrammars(self.grammars, self.batch.sampling.grammars)
        self.rows = np.arange(len(rows), dtype=np.int32)

    def step(self, drafts: dict[int, str] | None = None, *, is_told: bool = False) -> Sampled:
        """Sample all rows behind these drafts, as far as they are admitted, or are told to all stages."""
        batch, num_drafts = self.batch, np.zeros(self.batch.limits.max_num_seqs, np.int32)
        for row, text in (drafts or {}).items():
            token_ids = ids(text)
            end = int(batch.num_tokens[row])
            batch.tokens[row, end : end + len(token_ids)] = token_ids
            num_drafts[row] = len(token_ids)
        (self.told.expect if is_told else self.grammars.admit)(self.rows, num_drafts)
        self.grammars.work_ahead()
        counts = num_drafts[self.rows]
        runs = Runs.of(self.rows, batch.num_tokens[self.rows], counts, (counts + 1).cumsum().astype("i4"))
        sampled = self.sampler.sample_runs(torch.stack([self.logits(n) for n in runs.lengths.tolist()]), runs)
        assert sampled.run_lengths is not None
        batch.append_runs(sampled.rows, sampled.last_token_ids, sampled.run_lengths)
        self.sampler.took(sampled.rows, sampled.token_ids, sampled.run_lengths)
        return sampled

    def run(self, num_tokens: int) -> None:
        while len(self.output(0)) < num_tokens:
            assert self.step().errors == []

    def logits(self, length: int) -> torch.Tensor:
        return torch.randn(VOCAB, generator=torch.Generator().manual_seed(length))

    def output(self, row: int) -> list[int]:
        batch = self.batch
        tokens: list[int] = batch.tokens[row, batch.num_prompt_tokens[row] : batch.num_tokens[row]].tolist()
        return tokens

    def text(self, row: int) -> str:
        return TOKENIZER.decode([token_id for token_id in self.output(row) if token_id != EOS])


def lone(compiler: GrammarCompiler, row: Row, num_tokens: int) -> list[int]:
    bench = Bench(compiler, row)
    bench.run(num_tokens)
    return bench.output(0)


def test_right_drafts_count_up_to_the_end_and_wrong_ones_change_nothing(compiler: GrammarCompiler) -> None:
    rows = [Row(like("key: [0-9]{3}; done")), Row(like("[a-f]{5}[x-z]"))]
    texts = [lone(compiler, row, 14) for row in rows]
    bench = Bench(compiler, *rows)
    bench.step()
    sampled = bench.step({0: "ey: ", 1: "!"})
    assert sampled.run_lengths is not None
    # The last of the drafts is followed by a token of its own.
    assert sampled.run_lengths.tolist() == [5, 1]
    second = TOKENIZER.decode(texts[1][2:4])
    wrong = "9" if texts[0][6] != ids("9")[0] else "8"
    sampled = bench.step({0: wrong, 1: second})
    assert sampled.run_lengths is not None
    assert sampled.run_lengths.tolist() == [1, 3]
    bench.step({0: "q"})
    while len(bench.output(0)) < 14:
        bench.step({0: "; done"})
    assert bench.output(0)[:14] == texts[0][:14]
    assert bench.output(1)[:6] == texts[1][:6]


def test_drafts_are_cut_where_the_grammar_forbids_them(compiler: GrammarCompiler) -> None:
    bench = Bench(compiler, Row(like("abc[0-9]+")), Row(like("zz")), Row(like("a*")))
    bench.run(1)
    num_drafts = np.array([4, 3, -1], np.int32)
    bench.batch.tokens[0, 3:7] = ids("bcx1")
    bench.batch.tokens[1, 3:6] = [*ids("z"), EOS, EOS]
    assert bench.grammars.admit(bench.rows, num_drafts)
    assert num_drafts.tolist() == [2, 2, -1]
    bench.batch.tokens[0, 3] = ids("q")[0]
    num_drafts = np.array([4, 0, 0], np.int32)
    assert not bench.grammars.admit(np.array([0, 1, 7, -1], np.int32), num_drafts)


def test_what_all_stages_compute_counts_as_far_as_it_is_allowed(compiler: GrammarCompiler) -> None:
    rows = [Row(like("abc[0-9]+;")), Row(like("zz[0-9]{5}"))]
    texts = [lone(compiler, row, 7) for row in rows]
    bench = Bench(compiler, *rows)
    bench.step()
    sampled = bench.step({0: "bcx1", 1: "q"}, is_told=True)
    assert sampled.run_lengths is not None
    assert sampled.run_lengths.tolist() == [3, 1]
    # Of a matcher that has nothing to say nothing is known behind the drafts, not even where they are right.
    bench.grammars.allowed = lambda row, count: []  # type: ignore[method-assign]
    sampled = bench.step({0: TOKENIZER.decode(texts[0][4:6])}, is_told=True)
    assert sampled.errors == []
    assert sampled.run_lengths is not None
    assert sampled.run_lengths.tolist() == [1, 1]
    for row, text in enumerate(texts):
        output = bench.output(row)
        assert output == text[: len(output)]


def test_a_row_that_was_asked_for_a_step_to_come_is_forgiven_when_that_comes(
    compiler: GrammarCompiler,
) -> None:
    rows = [Row(like("ab[0-9]{4}")), Row(like("c+"))]
    alone = lone(compiler, rows[0], 6)
    bench = Bench(compiler, *rows)
    bench.step()
    bench.batch.tokens[0, bench.batch.num_tokens[0]] = ids("b")[0]
    num_drafts = np.array([1, 0], np.int32)
    bench.told.cut(bench.rows, num_drafts)
    assert num_drafts.tolist() == [1, 0]
    matcher = bench.batch.sampling.grammars[0].matcher
    assert matcher is not None
    matcher.consume_token(ids("q")[0])
    assert matcher.is_error()
    # A step of the other row comes in between.
    bench.rows = bench.rows[1:]
    assert bench.step().errors == []
    bench.rows = np.arange(2, dtype=np.int32)
    assert bench.step().errors == []
    bench.run(6)
    assert bench.output(0) == alone


def test_a_step_has_room_for_so_many_masks(compiler: GrammarCompiler) -> None:
    bench = Bench(compiler, *[Row(like("a*"))] * 3)
    bench.run(1)
    bench.batch.tokens[:3, 3:60] = ids("a")[0]
    num_drafts = np.array([57, 57, 57], np.int32)
    assert bench.grammars.admit(bench.rows, num_drafts)
    assert num_drafts.tolist() == [57, 57, MAX_DRAFT_MASKS - 2 * 58 - 1]


def test_what_is_forced_is_what_the_row_writes(compiler: GrammarCompiler) -> None:
    bench = Bench(compiler, Row(like('"(yes|no)", "customer_number": [0-9]')), Row(like("[ab]+")))
    assert bench.grammars.forced(0, []) == []
    bench.run(1)
    answer = bench.grammars.forced(0, [])
    assert answer == []
    behind = bench.grammars.forced(0, ids("yes"))
    assert TOKENIZER.decode(behind) == '", "customer_number": '
    assert bench.grammars.forced(0, ids("yep")) == []
    assert bench.grammars.forced(1, []) == []
    bench.run(4)
    chosen = bench.text(0)[1:]
    rest = '", "customer_number": ' if chosen.startswith("yes") else ', "customer_number": '
    assert TOKENIZER.decode(bench.grammars.forced(0, [])) == rest
    sampled = bench.step({0: rest})
    assert sampled.run_lengths is not None
    assert int(sampled.run_lengths[0]) == len(rest) + 1


def test_allowed_token_ids_hold_behind_drafts(compiler: GrammarCompiler) -> None:
    row = Row(like("ab[0-9]{4}", allowed_token_ids=(*ids("ab57"), EOS)))
    alone = lone(compiler, row, 7)
    bench = Bench(compiler, row)
    bench.step()
    bench.step({0: "b" + TOKENIZER.decode(alone[2:5])})
    assert len(bench.output(0)) == 6
    bench.step()
    assert bench.output(0) == alone


def test_min_tokens_give_way_behind_a_draft_as_they_do_without(compiler: GrammarCompiler) -> None:
    row = Row(like("ab", min_tokens=6))
    bench = Bench(compiler, row)
    bench.step()
    assert bench.step({0: "b"}).errors == []
    assert bench.output(0) == ids("ab")
    bench.step()
    assert bench.output(0) == [*ids("ab"), EOS] == lone(compiler, row, 3)
    assert not bench.batch.sampling.features[0] & Feature.MIN_TOKENS


def test_a_matcher_that_fails_for_drafts_alone_is_forgiven(compiler: GrammarCompiler) -> None:
    row = Row(like("ab[0-9]{4}"))
    alone = lone(compiler, row, 6)
    bench = Bench(compiler, row)
    bench.step()
    real = bench.grammars.admit

    def admit(rows: Int32, num_drafts: Int32) -> bool:
        is_any = real(rows, num_drafts)
        matcher = bench.batch.sampling.grammars[0].matcher
        assert matcher is not None
        matcher.consume_token(ids("q")[0])
        assert matcher.is_error()
        return is_any

    bench.grammars.admit = admit  # type: ignore[method-assign]
    sampled = bench.step({0: "b" + TOKENIZER.decode(alone[2:4])})
    assert sampled.errors == []
    # Nothing is known behind its drafts, so only the first token counts.
    assert bench.output(0) == alone[:2]
    bench.grammars.admit = real  # type: ignore[method-assign]
    bench.run(6)
    assert bench.output(0) == alone


def test_a_grammar_that_is_too_much_work_fails_only_where_it_is_reached(compiler: GrammarCompiler) -> None:
    row = Row(like("x(a?){300}a{300}"))
    plain, drafting = Bench(compiler, row), Bench(compiler, row)
    errors = [error for _ in range(4) for error in plain.step().errors]
    drafting.step()
    found = [error for _ in range(4) for error in drafting.step({0: "aaa"}).errors]
    assert found[:1] == errors[:1]
    assert drafting.output(0) == plain.output(0)


def test_a_folder_without_tokenizer_has_nothing_to_draft(tmp_path: Path) -> None:
    bench = Bench(GrammarCompiler(str(tmp_path), VOCAB, [EOS]), Row(like("abc")))
    assert bench.grammars.forced(0, []) == []
    (error,) = bench.step().errors
    assert error.code == "invalid_grammar"


def test_a_row_that_goes_on_behind_its_end_draws_only_ends(compiler: GrammarCompiler) -> None:
    bench = Bench(compiler, Row(like("ab", ignore_eos=True)))
    bench.step()
    bench.batch.tokens[0, 3:6] = [*ids("b"), EOS, EOS]
    num_drafts = np.array([3], np.int32)
    bench.grammars.admit(bench.rows, num_drafts)
    assert num_drafts[0] == 2
    for _ in range(5):
        assert bench.step({0: "b"}).errors == []
    assert bench.output(0) == [*ids("ab"), *[EOS] * (len(bench.output(0)) - 2)]
