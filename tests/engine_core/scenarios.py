"""A random life of an engine from one seed: configuration, arrivals, aborts, faults, until all has ended.

The driver compares the engine's bookkeeping with itself after every event, each step's attention with the
shadow of the KV cache, and each request's tokens with those of a run alone.
"""

from __future__ import annotations

import contextlib
from random import Random
from typing import NamedTuple

import msgspec

from splitserve.engine_core.config import SHORT_STEP_S, SchedulerConfig
from splitserve.engine_core.errors import OverloadedError
from splitserve.engine_core.executor.simulated.executor import FaultKind, ScriptedFault
from splitserve.engine_core.executor.simulated.tokens import TokenRule
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from splitserve.engine_core.sequence_sampling import RepetitionDetection
from tests.engine_core.engine_driver import COMPLETE, STEP_S, EngineDriver, Tracked

STEM_LEN = 24
TENANTS = ("", "", "a", "b")
POISON_SEED = 666
FRONTENDS = (b"frontend-0", b"frontend-1", b"frontend-2")


class Tally(NamedTuple):
    """What a scenario came to; a run over many must see all of it."""

    requests: int
    steps: int
    preemptions: int
    hit_tokens: int
    saved_blocks: int
    loaded_blocks: int
    aborted: int
    failed: int
    timed_out: int
    displaced: int
    worker_losses: int
    unsafe: int


def run_scenario(seed: int, max_events: int = 16) -> Tally:
    """Play the scenario of a seed, of 1 to max_events events before the engine is left to end what is open.

    Raises:
        AssertionError: something broke; names the seed and how to play it again. The cause is chained.
    """
    try:
        return _Scenario(Random(seed)).run(max_events)
    except Exception as error:
        again = f"python -m tests.engine_core.soak --seed {seed} --events {max_events}"
        raise AssertionError(f"scenario {seed}: {type(error).__name__}: {error}; again: {again}") from error


class Poison:
    """Kills the worker with every step that computes a row of POISON_SEED."""

    def __init__(self) -> None:
        self._rows: set[int] = set()

    def survives(self, step: SchedulerOutput) -> bool:
        self._rows.difference_update(unpack_int32(step.freed_rows).tolist())
        self._rows.update(new.row for new in step.new_rows if new.sampling.seed == POISON_SEED)
        if self._rows.isdisjoint(unpack_int32(step.rows).tolist()):
            return True
        self._rows.clear()
        return False


class _Scenario:
    def __init__(self, chance: Random) -> None:
        self._chance = chance
        vocab_size = chance.choice([2, 8, 8, 50])
        rule = TokenRule(vocab_size, (0,), eos_probability=chance.choice([0.0, 0.05, 0.3]))
        faults = []
        if chance.random() < 0.3:
            faults = [
                ScriptedFault(FaultKind.ROW_ERROR, step=chance.randint(1, 30), place=chance.randint(0, 3))
            ]
        self._restarts = 1
        self._num_losses = 0
        if chance.random() < 0.2:
            steps = chance.sample(range(1, 40), 4)
            self._restarts += len(steps)
            faults += [ScriptedFault(FaultKind.OUT_OF_MEMORY, step) for step in steps]
        # Of the first group, and of those behind it, the widest first.
        window = chance.randint(1, 24) if chance.random() < 0.25 else 0
        num_window_groups = chance.choice([0, 0, 0, 0, 1, 2, 3])
        widths = [chance.randint(1, window or 24) for _ in range(num_window_groups)]
        # Often alike, as those of models are.
        widths = [widths[i - i % chance.choice([1, 2])] for i in range(num_window_groups)]
        config = self._config()
        if num_window_groups:
            # A block of each group in place of one; and from barely one longest sequence to several.
            config = msgspec.structs.replace(config, num_blocks=config.num_blocks * (1 + num_window_groups))
        self.driver = EngineDriver(
            config,
            rule,
            depth=chance.randint(1, 5),
            step_s=chance.choice([STEP_S, STEP_S, SHORT_STEP_S / 2]),
            faults=faults,
            sliding_window=window,
            group_windows=sorted(widths, reverse=True),
            survives=Poison().survives,
        )
        self._is_poison_left = chance.random() < 0.1
        # Few stems and tokens make equal prefixes common.
        self._stems = [[chance.randrange(vocab_size) for _ in range(STEM_LEN)] for _ in range(2)]
        self._vocab_size = vocab_size

    def run(self, max_events: int) -> Tally:
        for _ in range(self._chance.randint(1, max_events)):
            self._event()
        self.driver.run(self._max_turns())
        return self._tally()

    def _config(self) -> SchedulerConfig:
        chance = self._chance
        block_size = chance.randint(1, 6)
        max_model_len = chance.randint(32, 64)
        tight = -(-max_model_len // block_size)
        enable_prefix_caching = chance.random() < 0.8
        num_stages = chance.choice([1, 1, 2, 3])
        return SchedulerConfig(
            max_num_seqs=chance.randint(1, 8),
            max_num_batched_tokens=chance.choice([1, 4, 8, 16, 32, 64]),
            max_prefill_tokens=chance.choice([0, 0, 1, 5, 16]),
            max_num_waiting=chance.choice([1000, 1000, 1, 3]),
            max_model_len=max_model_len,
            block_size=block_size,
            # From barely one longest sequence to several.
            num_blocks=tight * chance.choice([1, 1, 1, 2]) + chance.randint(0, 3),
            policy=chance.choice(["fcfs", "priority", "fair"]),
            enable_prefix_caching=enable_prefix_caching,
            tenant_weights=chance.choice([{}, {"a": 3}]),
            # A step takes a second, so that a target of one leaves an eighth of it for moves.
            target_itl_s=chance.choice([0.0, 0.0, 1.0]),
            num_host_blocks=chance.choice([0, 1, 3, tight, 4 * tight, 4 * tight])
            if enable_prefix_caching
            else 0,
            move_block_ns=chance.choice([0, 1, 50_000_000, 125_000_000, 10**9]),
            victim=chance.choice(["cost", "cost", "last"]),
            num_stages=num_stages,
            num_speculative_tokens=chance.choice([0, 1, 4, 8]),
            drafts_fill_blocks=chance.random() < 0.5,
        )

    def _event(self) -> None:
        kind = self._chance.choices(
            ["arrive", "turns", "plan", "abort", "leave", "reset", "lose"], [50, 30, 8, 6, 2, 4, 4]
        )[0]
        if kind == "arrive":
            for _ in range(self._chance.choice([1, 1, 1, 5])):
                self._arrive()
        elif kind == "turns":
            for _ in range(self._chance.choice([1, 2, 8])):
                self.driver.engine.expire()
                self.driver.turn()
        elif kind == "plan":
            self.driver.plan()
        elif kind == "abort":
            sequences = [sequence for sequence in self.driver.sequences.values() if sequence.is_open]
            if sequences:
                self.driver.abort(self._chance.choice(sequences))
        elif kind == "leave":
            self.driver.leave(self._chance.choice(FRONTENDS))
        elif kind == "lose":
            self._restarts += 1
            self._num_losses += 1
            self.driver.lose_worker()
        else:
            self.driver.engine.reset_prefix_cache()
            self.driver.check()

    def _arrive(self) -> None:
        chance = self._chance
        tail = [chance.randrange(self._vocab_size) for _ in range(chance.randint(1, 6))]
        max_tokens = chance.choice([None, None, 0, 1, 3, 8, 20])
        with contextlib.suppress(OverloadedError):
            self._add(tail, max_tokens)

    def _add(self, tail: list[int], max_tokens: int | None) -> None:
        chance = self._chance
        self.driver.add(
            chance.choice(self._stems)[: chance.randint(0, STEM_LEN)] + tail,
            chance.choice(FRONTENDS),
            num_resumed=chance.choice([0, 0, 0, 1, 4, 100]),
            priority=chance.randint(-1, 2),
            tenant=chance.choice(TENANTS),
            cache_salt=chance.choice(["", "", "", "salt"]),
            timeout_s=chance.choice([0.0, 0.0, 0.0, 0.0, 3.0, 20.0]),
            streams=chance.random() < 0.6,
            max_tokens=max_tokens,
            min_tokens=0 if max_tokens in (0, 1) else chance.choice([0, 0, 0, 3]),
            stop_token_ids=chance.choice([(), (), (1,), (self._vocab_size - 1, 1)]),
            ignore_eos=chance.random() < 0.5,
            logprobs=chance.choice([None, None, 0, 2]),
            prompt_logprobs=chance.choice([None, None, None, 0]),
            repetition_detection=chance.choice([None, None, None, RepetitionDetection(2)]),
            temperature=1.0,
            seed=POISON_SEED if self._takes_poison() else chance.randint(0, 3),
        )

    def _takes_poison(self) -> bool:
        """Whether the next request is the one that kills workers, if there is to be one at all."""
        if not self._is_poison_left or self._chance.random() < 0.7:
            return False
        self._is_poison_left = False
        self._restarts += 5
        return True

    def _max_turns(self) -> int:
        """The first in order needs two turns per token; others start again, but those of fcfs with "last".

        All start again after a step without memory, and may compute a token per step for a while.
        """
        sequences = self.driver.sequences.values()
        num_tokens = sum(len(sequence.prompt) + len(sequence.expected) + 1 for sequence in sequences)
        config = self.driver.config
        restarts = 1 if config.policy == "fcfs" and config.victim == "last" else len(sequences)
        return 2 * num_tokens * restarts * self._restarts + 10

    def _tally(self) -> Tally:
        sequences = self.driver.sequences.values()
        if not self._num_losses:
            assert {s.sampling.seed for s in sequences if _is_unsafe(s)} <= {POISON_SEED}
        ends = [sequence.finished for sequence in sequences if sequence.finished is not None]
        codes = [end.error_code for end in ends if end.reason not in COMPLETE]
        known = {"simulated_fault", "timeout", "out_of_memory", "overloaded", "request_unsafe"}
        assert set(codes) <= known, codes
        stats = self.driver.engine.stats()
        return Tally(
            requests=len(sequences),
            steps=len(self.driver.steps),
            preemptions=stats.num_preemptions,
            hit_tokens=stats.prefix_cache_hits,
            saved_blocks=stats.num_saved_blocks,
            loaded_blocks=stats.num_loaded_blocks,
            aborted=sum(sequence.was_aborted for sequence in sequences),
            failed=codes.count("simulated_fault"),
            timed_out=codes.count("timeout"),
            displaced=codes.count("overloaded"),
            worker_losses=stats.num_worker_restarts,
            unsafe=codes.count("request_unsafe"),
        )


def _is_unsafe(sequence: Tracked) -> bool:
    return sequence.finished is not None and sequence.finished.error_code == "request_unsafe"
