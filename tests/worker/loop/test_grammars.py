"""A real worker process compiles grammars while it is idle and between steps, and holds rows to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.worker_messages import (
    CompileGrammar,
    GrammarCompiled,
    InitKVCache,
    KVCacheReady,
    ModelRunnerOutput,
    NewRow,
    SchedulerOutput,
    Shutdown,
    WorkerReady,
)
from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.worker.loop.engine import DEADLINE_S, FakeEngine, settings_of, worker_process
from tests.worker.runner.checkpoints import EOS, tokenizer

pytestmark = [pytest.mark.system, pytest.mark.slow]

GRAMMAR = 'start: "a" /[0-9]{2}/ "b"'


def test_an_idle_worker_answers_and_a_row_follows_its_grammar(engine: FakeEngine, checkpoint: Path) -> None:
    with worker_process(engine.address) as process:
        engine.configure(settings_of(checkpoint))
        engine.expect_after_progress(WorkerReady)
        engine.send(InitKVCache(40))
        engine.expect(KVCacheReady)
        engine.send(CompileGrammar(5, GRAMMAR))
        assert engine.expect(GrammarCompiled) == GrammarCompiled(5)
        engine.send(CompileGrammar(6, "start: nobody"))
        assert 'unknown name: "nobody"' in engine.expect(GrammarCompiled).error
        row = NewRow(
            row=0,
            token_ids=pack_int32([5, 6, 7]),
            num_prompt_tokens=3,
            num_computed_tokens=0,
            block_ids=pack_int32([0, 1, 2]),
            sampling=SequenceSampling(seed=1, grammar=GRAMMAR),
        )
        output = []
        for number in range(1, 6):
            is_first = number == 1
            num_tokens = pack_int32([3 if is_first else 1])
            engine.send(SchedulerOutput(number, pack_int32([0]), num_tokens, [row] if is_first else []))
            output += unpack_int32(engine.expect(ModelRunnerOutput).token_ids).tolist()
        text = tokenizer().decode(output[:4])
        assert (text[0], text[1:3].isdecimal(), text[3], output[4]) == ("a", True, "b", EOS)
        engine.send(Shutdown())
        assert process.wait(DEADLINE_S) == 0
