"""What does a drafter gain? Processor time per token of streams, with and without, in turns.

    python -m benchmarks.draft_model --method METHOD [--draft DIR] [--model DIR] [--streams N] [--tokens N]
                                     [--drafts K] [--turns N] [--temperature T] [--threads N] [--questions]

Scheduler and worker run in this process; the streams make up conversations as the demo model does, or answer
questions that it was not trained on, others in each turn. What both turns sample is compared. Times are those
of this thread, so they count only with --threads 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from benchmarks.perplexity import DEMO_MODEL, SEED
from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.executor.inproc import InprocExecutor
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32, unpack_int64
from splitserve.engine_core.ipc.messages import AddRequest, EngineStats
from splitserve.engine_core.ipc.worker_messages import KVCacheReady, ModelRunnerOutput, WorkerReady
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.engine_core.settings.speculation import METHODS
from splitserve.worker.config import WorkerConfig
from splitserve.worker.worker import Worker
from training.corpus import conversations
from training.tokenizer import render

BLOCK_SIZE = 16
# "<|im_start|>user\n" of the demo model.
PROMPT = [1, 280, 202]
FRONTEND = b"benchmark"
WITH_MODEL = ("draft_model", "eagle3")


class Turn(NamedTuple):
    """One run of all streams: processor time per token, steps, those with drafts, drafts, which counted."""

    ms_per_token: float
    num_steps: int
    num_drafting: int
    num_drafts: int
    num_counted: int
    tokens: list[list[int]]


class Server:
    """A scheduler and a worker in this process.

    Args:
        options: see the module.
        method: who drafts; "" for nobody.
    """

    def __init__(self, options: argparse.Namespace, method: str) -> None:
        asked = {"method": method, "num_speculative_tokens": options.drafts}
        config = WorkerConfig(
            model=str(options.model),
            num_threads=options.threads,
            max_num_seqs=options.streams,
            max_num_batched_tokens=512,
            max_model_len=1024,
            speculative_model=str(options.draft) if method in WITH_MODEL else "",
            speculative_config=json.dumps(asked) if method else "",
        )
        self._options = options
        self._executor = InprocExecutor(Worker(config))
        self._executor.start()
        (ready,) = self._executor.receive()
        assert isinstance(ready, WorkerReady)
        num_blocks = options.streams * 1024 // BLOCK_SIZE
        self._executor.init_kv_cache(num_blocks)
        (cache,) = self._executor.receive()
        assert isinstance(cache, KVCacheReady)
        limits = SchedulerConfig(
            max_num_seqs=options.streams,
            max_num_batched_tokens=512,
            max_model_len=1024,
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            num_speculative_tokens=options.drafts if method else 0,
        )
        self._engine = EngineCore(limits, ready.model, epoch=1, clock=ManualClock())
        self._num_requests = 0

    def run(self, seed: int, prompts: list[list[int]]) -> Turn:
        """Decode all streams to their ends, each behind its prompt."""
        options, before = self._options, self._engine.stats()
        first = self._num_requests
        self._num_requests += options.streams
        for i in range(options.streams):
            sampling = SequenceSampling(
                seed=seed + i,
                max_tokens=options.tokens,
                ignore_eos=not options.questions,
                temperature=options.temperature,
            )
            prompt = pack_int32(prompts[i])
            self._engine.add(FRONTEND, AddRequest(first + i, f"r{first + i}", prompt, sampling))
        tokens: list[list[int]] = [[] for _ in range(options.streams)]
        started = time.thread_time()
        while self._engine.has_requests or self._engine.num_steps_in_flight:
            self._step(tokens, first)
        spent = time.thread_time() - started
        after = self._engine.stats()
        return Turn(
            1000 * spent / sum(map(len, tokens)),
            after.num_steps - before.num_steps,
            _num_drafting(after) - _num_drafting(before),
            after.draft_tokens - before.draft_tokens,
            after.accepted_draft_tokens - before.accepted_draft_tokens,
            tokens,
        )

    def _step(self, tokens: list[list[int]], first: int) -> None:
        while self._engine.num_steps_in_flight < 2 and (step := self._engine.plan()) is not None:
            self._executor.submit(step)
        for message in self._executor.receive():
            assert isinstance(message, ModelRunnerOutput)
            self._engine.apply(message)
        outputs = self._engine.take_outputs().get(FRONTEND)
        if outputs is not None:
            columns = unpack_int64(outputs.handles).tolist(), unpack_int32(outputs.token_ids).tolist()
            for handle, token in zip(*columns, strict=True):
                tokens[handle - first].append(token)


def _num_drafting(stats: EngineStats) -> int:
    """Steps of rows that drafted: as many first drafts, of whoever drafts."""
    return sum(each.drafted[0] for each in stats.drafts)


def questions(count: int) -> list[list[int]]:
    """Return conversations up to their first answers."""
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    mark = "<|im_start|>assistant\n"
    texts = [render(item) for item in conversations(SEED, count)]
    return [tokenizer.encode(text[: text.index(mark) + len(mark)]).ids for text in texts]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draft", type=Path, help="the draft model or head")
    parser.add_argument("--method", choices=METHODS, default="draft_model")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--questions", action="store_true", help="answer questions, up to --tokens each")
    options = parser.parse_args()
    if options.method in WITH_MODEL and options.draft is None:
        parser.error(f"--method {options.method} needs --draft DIR")
    servers = {"none": Server(options, ""), "draft": Server(options, options.method)}
    turns: dict[str, list[Turn]] = {name: [] for name in servers}
    count = options.streams * (options.turns + 1)
    prompts = questions(count) if options.questions else [PROMPT] * count
    for i in range(options.turns + 1):
        given = prompts[i * options.streams : (i + 1) * options.streams]
        for name, server in servers.items():
            turns[name].append(server.run(1000 * i, given))
        assert turns["none"][-1].tokens == turns["draft"][-1].tokens, "drafts change no token"
    for name, each in turns.items():
        # The first turn records steps.
        each = each[1:]
        ms = statistics.median(turn.ms_per_token for turn in each)
        drafts, counted = sum(turn.num_drafts for turn in each), sum(turn.num_counted for turn in each)
        steps = sum(turn.num_steps for turn in each)
        length = counted / max(1, sum(turn.num_drafting for turn in each))
        print(
            f"{name:<6} {ms:.3f} ms per token, {steps} steps, {counted} of {drafts} drafts counted, "
            f"{length:.2f} of each step that drafted"
        )
    ratios = [a.ms_per_token / b.ms_per_token for a, b in zip(*(t[1:] for t in turns.values()), strict=True)]
    print(f"ratio  {statistics.median(ratios):.2f} ({', '.join(f'{ratio:.2f}' for ratio in sorted(ratios))})")


if __name__ == "__main__":
    main()
