"""Who waits for a grammar, who overtakes whom meanwhile, and what a refusal or a lost worker means."""

from __future__ import annotations

import pytest

from splitserve.engine_core.engine import grammars as grammars_module
from splitserve.engine_core.engine.grammars import Grammars
from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.ipc.messages import WaitReason
from splitserve.engine_core.ipc.worker_messages import GrammarCompiled
from splitserve.engine_core.request import Request, RequestState
from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.engine_core.engine.test_start_over import CONFIG
from tests.engine_core.engine_driver import EngineDriver
from tests.engine_core.requests import make_request


def constrained(grammar: str | None, arrival: int = 0) -> Request:
    return make_request(arrival=arrival, sampling=SequenceSampling(seed=0, grammar=grammar))


def test_a_grammar_is_asked_for_once_and_never_again_while_it_is_remembered() -> None:
    grammars = Grammars()
    grammars.add([constrained("a"), constrained("b"), constrained("a"), constrained(None)])
    assert set(grammars.uncompiled) == {"a", "b"}
    first, second = grammars.take_unsent()
    assert (first.grammar, second.grammar) == ("a", "b")
    assert grammars.take_unsent() == []
    assert grammars.answered(GrammarCompiled(first.number)) == []
    assert set(grammars.uncompiled) == {"b"}
    grammars.add([constrained("a"), constrained("b")])
    assert grammars.take_unsent() == []


def test_a_refusal_ends_everyone_who_waits_and_is_not_remembered() -> None:
    grammars = Grammars()
    waiting, ended = constrained("a"), constrained("a")
    grammars.add([waiting, ended])
    (ask,) = grammars.take_unsent()
    ended.state = RequestState.ENDED
    (end,) = grammars.answered(GrammarCompiled(ask.number, "no such rule"))
    assert end.request is waiting
    assert (end.error_code, end.error_message, end.error_status) == ("invalid_grammar", "no such rule", 400)
    grammars.add([constrained("a")])
    assert len(grammars.take_unsent()) == 1


def test_an_answer_to_nothing_is_the_workers_fault() -> None:
    with pytest.raises(WorkerError, match="grammar 7, which was not asked for"):
        Grammars().answered(GrammarCompiled(7))


def test_what_was_compiled_by_a_lost_worker_is_asked_for_again() -> None:
    grammars = Grammars()
    running = constrained("a")
    grammars.add([running])
    grammars.answered(GrammarCompiled(grammars.take_unsent()[0].number))
    assert grammars.start_over([running]) == []
    assert set(grammars.uncompiled) == {"a"}
    (ask,) = grammars.take_unsent()
    assert ask.grammar == "a"
    # The worker before may have answered under the first number.
    assert ask.number == 2


def test_a_grammar_that_two_workers_died_of_is_not_tried_again() -> None:
    grammars = Grammars()
    poison, other = constrained("poison"), constrained("other")
    grammars.add([poison])
    grammars.take_unsent()
    assert grammars.start_over([poison]) == []
    grammars.add([other])
    assert [ask.grammar for ask in grammars.take_unsent()] == ["poison", "other"]
    (end,) = grammars.start_over([poison, other])
    assert end.request is poison
    assert (end.error_code, end.error_status) == ("request_unsafe", 500)
    assert set(grammars.uncompiled) == {"other"}


def test_a_grammar_that_was_not_sent_is_not_to_blame() -> None:
    grammars = Grammars()
    request = constrained("a")
    grammars.add([request])
    for _ in range(5):
        assert grammars.start_over([request]) == []


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars_module, "MAX_REMEMBERED", 2)
    grammars = Grammars()
    for grammar in "abcab":
        grammars.add([constrained(grammar)])
        for ask in grammars.take_unsent():
            grammars.answered(GrammarCompiled(ask.number))
    grammars.add([constrained("a"), constrained("b"), constrained("c")])
    assert [ask.grammar for ask in grammars.take_unsent()] == ["c"]


def test_the_texts_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars_module, "MAX_REMEMBERED_CHARS", 20)
    grammars = Grammars()
    texts = [letter * 8 for letter in "abc"]
    for text in texts:
        grammars.add([constrained(text)])
        grammars.answered(GrammarCompiled(grammars.take_unsent()[0].number))
    grammars.add([constrained(text) for text in texts])
    assert [ask.grammar for ask in grammars.take_unsent()] == [texts[0]]


def test_others_overtake_a_request_whose_grammar_is_being_compiled() -> None:
    driver = EngineDriver(CONFIG)
    driver.add([1, 2, 3], max_tokens=4, ignore_eos=True, grammar="slow")
    other = driver.add([4, 5, 6], max_tokens=4, ignore_eos=True)
    for _ in range(2):
        driver.turn()
    assert other.started is not None
    (waits,) = [info for info in driver.engine.explain([], "") if info.waits_for is not WaitReason.NONE]
    assert waits.waits_for is WaitReason.GRAMMAR
    (ask,) = driver.engine.grammars.take_unsent()
    driver.engine.compiled(GrammarCompiled(ask.number))
    driver.run()


def test_a_refused_grammar_ends_its_request_and_no_other() -> None:
    driver = EngineDriver(CONFIG)
    refused = driver.add([1, 2, 3], max_tokens=4, ignore_eos=True, grammar="bad")
    driver.add([4, 5, 6], max_tokens=4, ignore_eos=True)
    driver.turn()
    (ask,) = driver.engine.grammars.take_unsent()
    driver.engine.compiled(GrammarCompiled(ask.number, "at 1(8): unknown name"))
    outputs = driver.engine.take_outputs(everything=True)
    finished = [end for output in outputs.values() for end in output.finished]
    assert [(end.handle, end.error_code, end.error_status) for end in finished] == [
        (refused.handle, "invalid_grammar", 400)
    ]
    driver.engine.check_integrity()
