"""Grammars are compiled beside the loop, answered in order and to nobody who is gone, and kept in bounds."""

from __future__ import annotations

import select
from pathlib import Path

import pytest
from llguidance import LLMatcher

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.ipc.worker_messages import CompileGrammar, GrammarCompiled
from splitserve.worker.grammar import compiler as compiler_module
from splitserve.worker.grammar.compiler import GrammarCompiler
from tests.worker.runner.checkpoints import EOS, VOCAB, tokenizer


@pytest.fixture
def compiler(tmp_path: Path) -> GrammarCompiler:
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    return GrammarCompiler(str(tmp_path), VOCAB, [EOS])


def take(compiler: GrammarCompiler, count: int) -> list[GrammarCompiled]:
    """Wait for so many answers on the descriptor, as the loop does."""
    answers: list[GrammarCompiled] = []
    while len(answers) < count:
        assert select.select([compiler.done_fd], [], [], 60)[0], "no answer came"
        answers += compiler.take_done()
    return answers


def test_answers_come_in_the_order_of_the_questions(compiler: GrammarCompiler) -> None:
    for number in range(5):
        compiler.ask(CompileGrammar(number, f'start: "{number}"'))
    assert compiler.is_busy
    assert take(compiler, 5) == [GrammarCompiled(number) for number in range(5)]
    assert not compiler.is_busy
    assert compiler.take_done() == []
    compiler.close()


def test_what_cannot_be_compiled_is_answered_with_the_reason(compiler: GrammarCompiler) -> None:
    compiler.ask(CompileGrammar(1, "start: nobody"))
    compiler.ask(CompileGrammar(2, 'start: "a"'))
    refused, ready = take(compiler, 2)
    assert refused.number == 1
    assert 'unknown name: "nobody"' in refused.error
    assert ready == GrammarCompiled(2)
    compiler.close()


def test_the_tokenizer_is_read_ahead(compiler: GrammarCompiler) -> None:
    compiler.prepare()
    compiler.close()
    assert compiler._tokenizer is not None
    assert compiler._tokenizer.eos_tokens == [EOS]


def test_a_checkpoint_without_tokenizer_is_no_fault_until_somebody_asks(tmp_path: Path) -> None:
    compiler = GrammarCompiler(str(tmp_path), VOCAB, [EOS])
    compiler.prepare()
    compiler.ask(CompileGrammar(1, 'start: "a"'))
    (answer,) = take(compiler, 1)
    assert "tokenizer.json" in answer.error
    compiler.close()


def test_who_is_gone_is_not_answered(compiler: GrammarCompiler) -> None:
    compiler.ask(CompileGrammar(1, 'start: "a"'))
    compiler.forget_asks()
    assert not compiler.is_busy
    compiler.ask(CompileGrammar(1, 'start: "b"'))
    assert take(compiler, 1) == [GrammarCompiled(1)]
    assert not compiler.is_busy
    compiler.close()


def test_a_grammar_is_compiled_once_while_it_is_kept(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []
    real = GrammarCompiler._compile

    def noting(self: GrammarCompiler, text: str) -> LLMatcher:
        compiled.append(text)
        return real(self, text)

    monkeypatch.setattr(GrammarCompiler, "_compile", noting)
    monkeypatch.setattr(compiler_module, "MAX_COMPILED", 2)
    texts = ['start: "a"', 'start: "b"', 'start: "c"']
    for text in (texts[0], texts[1], texts[0], texts[2], texts[0], texts[1]):
        compiler.matcher(text)
    assert compiled == [texts[0], texts[1], texts[2], texts[1]]


def test_the_texts_that_are_kept_are_bounded(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_module, "MAX_COMPILED_CHARS", 30)
    for letter in "abcdef":
        compiler.matcher(f'start: "{letter}"')
    assert len(compiler._compiled) == 3
    assert compiler._num_chars == 30


def test_matchers_of_one_grammar_are_independent(compiler: GrammarCompiler) -> None:
    first, second = compiler.matcher('start: "ab"'), compiler.matcher('start: "ab"')
    made = tokenizer()
    assert first.consume_tokens(made.encode("ab", add_special_tokens=False).ids)
    assert first.is_stopped()
    assert not second.is_stopped()


def test_a_refused_grammar_is_not_kept(compiler: GrammarCompiler) -> None:
    with pytest.raises(InvalidRequestError):
        compiler.matcher("start: nobody")
    assert not compiler._compiled
