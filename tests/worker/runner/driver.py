"""Drives a Worker through whole requests: alone and straight, or many at once and everything at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.wire import TokenLogprobs
from splitserve.engine_core.ipc.worker_messages import (
    NO_ADAPTER,
    ModelRunnerOutput,
    NewRow,
    RowError,
    SchedulerOutput,
)
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.config import WorkerConfig
from splitserve.worker.worker import Worker


@dataclass(slots=True)
class Job:
    """One request and what came of it; logprobs are the bytes from the wire, so that equality is bitwise."""

    prompt: list[int]
    sampling: SequenceSampling
    num_outputs: int
    adapter: int = NO_ADAPTER
    tokens: list[int] = field(default_factory=list)
    logprobs: dict[int, tuple[int, bytes, bytes]] = field(default_factory=dict)
    prompt_logprobs: dict[int, tuple[int, bytes, bytes]] = field(default_factory=dict)
    error: RowError | None = None

    @property
    def is_done(self) -> bool:
        return self.error is not None or len(self.tokens) >= self.num_outputs

    def again(self) -> Job:
        """The same request, not yet run."""
        return Job(self.prompt, self.sampling, self.num_outputs, self.adapter)


@dataclass(slots=True)
class _Running:
    job: Job
    num_computed: int = 0
    # A block of each group of layers for every block_size tokens.
    blocks: list[list[int]] = field(default_factory=list)

    @property
    def block_ids(self) -> list[int]:
        return [block_id for entry in self.blocks for block_id in entry]

    @property
    def num_tokens(self) -> int:
        return len(self.job.prompt) + len(self.job.tokens)


class HostTier:
    """Keeps the computed blocks of preempted jobs in host blocks, as far as they go, and brings them back."""

    def __init__(self, num_blocks: int, num_host_blocks: int) -> None:
        self._free = list(range(num_blocks, num_blocks + num_host_blocks))
        self._saved: dict[int, tuple[int, list[int]]] = {}
        self.moves: list[tuple[int, int]] = []
        self.num_loads = 0

    def save(self, job: Job, num_computed: int, block_ids: list[int]) -> None:
        # A prompt whose logprobs are asked for is computed in one go.
        if len(block_ids) <= len(self._free) and (job.tokens or job.sampling.prompt_logprobs is None):
            places = [self._free.pop() for _ in block_ids]
            self.moves += zip(block_ids, places, strict=True)
            self._saved[id(job)] = num_computed, places

    def load(self, job: Job, block_ids: list[int]) -> int:
        """Return how many tokens are computed in the blocks moved back."""
        num_computed, places = self._saved.pop(id(job), (0, []))
        self.num_loads += len(places) > 0
        self.moves += zip(places, block_ids, strict=False)
        self._free += places
        return num_computed


class Executes(Protocol):
    """A worker on one rank or several."""

    def execute(self, step: SchedulerOutput, /) -> ModelRunnerOutput: ...


def num_window_groups_of(worker: Worker) -> int:
    """Window groups of a loaded model; its pool needs as many blocks more for each of the first group."""
    assert worker.loaded is not None
    return worker.loaded.layer_groups.num_window_groups


class Driver:
    """A scheduler without a policy. With an rng it admits, chunks, skips, preempts and orders at random.

    The pool has num_blocks blocks for each group of layers.
    """

    def __init__(
        self,
        worker: Executes,
        config: WorkerConfig,
        num_blocks: int,
        rng: random.Random | None = None,
        num_host_blocks: int = 0,
        tells_tokens: bool = False,
        num_window_groups: int = 0,
    ) -> None:
        self._num_groups = 1 + num_window_groups
        num_blocks *= self._num_groups
        self._worker = worker
        self._tells_tokens = tells_tokens
        self._block_size = config.block_size
        self._rng = rng
        self._rows: dict[int, _Running] = {}
        self._free_rows = list(range(config.max_num_seqs))
        self._free_blocks = list(range(num_blocks))
        self._budget = config.max_num_batched_tokens
        self._freed: list[int] = []
        self._new: list[NewRow] = []
        self._appended: list[tuple[int, list[int]]] = []
        self.host = HostTier(num_blocks, num_host_blocks)
        self._step = 0
        self.mixed_steps = 0

    def run(self, jobs: Sequence[Job]) -> None:
        """Run all jobs to their ends."""
        waiting = list(jobs)
        while waiting or self._rows:
            self._preempt(waiting)
            self._admit(waiting)
            plan = self._plan()
            if plan:
                self._execute(plan)
        self._execute({})

    def _execute(self, plan: dict[int, int]) -> None:
        self._step += 1
        step = SchedulerOutput(
            step=self._step,
            rows=pack_int32(list(plan)),
            num_tokens=pack_int32(list(plan.values())),
            new_rows=self._new,
            freed_rows=pack_int32(self._freed),
            block_rows=pack_int32([row for row, _ in self._appended]),
            block_ids=pack_int32([block for _, entry in self._appended for block in entry]),
            moves_from=pack_int32([source for source, _ in self.host.moves]),
            moves_to=pack_int32([target for _, target in self.host.moves]),
            last_token_ids=pack_int32([self._last_token(row) for row in plan] if self._tells_tokens else []),
        )
        self._new, self._freed, self._appended, self.host.moves = [], [], [], []
        decodes = sum(count == 1 for count in plan.values())
        self.mixed_steps += 0 < decodes < len(plan)
        output = self._worker.execute(step)
        assert output.step == self._step
        for row, count in plan.items():
            self._rows[row].num_computed += count
        self._take(output)

    def _last_token(self, row: int) -> int:
        """What a row sampled last, as a pipeline has to be told; anything before it has."""
        return (self._rows[row].job.tokens or [-1])[-1]

    def _take(self, output: ModelRunnerOutput) -> None:
        tokens = dict(
            zip(unpack_int32(output.rows).tolist(), unpack_int32(output.token_ids).tolist(), strict=True)
        )
        due = {row for row, running in self._rows.items() if running.num_computed == running.num_tokens}
        failed = {error.row for error in output.errors}
        assert set(tokens) == due - failed
        for entry in output.prompt_logprobs:
            _keep(self._rows[entry.key].job.prompt_logprobs, entry)
        for entry in output.logprobs:
            _keep(self._rows[entry.key].job.logprobs, entry)
        for error in output.errors:
            self._rows[error.row].job.error = error
        for row, token in tokens.items():
            self._rows[row].job.tokens.append(token)
        for row in [row for row, running in self._rows.items() if running.job.is_done]:
            self._release(row)

    def _release(self, row: int) -> Job:
        running = self._rows.pop(row)
        self._freed.append(row)
        self._free_rows.append(row)
        self._free_blocks += running.block_ids
        return running.job

    def _preempt(self, waiting: list[Job]) -> None:
        # A row that no step has named yet cannot be freed: freed rows are applied before new ones.
        known = self._rows.keys() - {new.row for new in self._new}
        if self._rng is not None and known and self._rng.random() < 0.1:
            row = self._rng.choice(sorted(known))
            running = self._rows[row]
            num_filled = -(-running.num_computed // self._block_size)
            filled = running.block_ids[: num_filled * self._num_groups]
            self.host.save(running.job, running.num_computed, filled)
            waiting.append(self._release(row))

    def _admit(self, waiting: list[Job]) -> None:
        while waiting and self._free_rows and (self._rng is None or self._rng.random() < 0.6):
            job = waiting.pop(self._pick(len(waiting)))
            row = self._free_rows.pop(self._pick(len(self._free_rows)))
            self._rows[row] = running = _Running(job)
            needed = -(-running.num_tokens // self._block_size)
            running.blocks = [self._take_entry() for _ in range(needed)]
            running.num_computed = self.host.load(job, running.block_ids)
            self._new.append(
                NewRow(
                    row=row,
                    token_ids=pack_int32([*job.prompt, *job.tokens]),
                    num_prompt_tokens=len(job.prompt),
                    num_computed_tokens=running.num_computed,
                    block_ids=pack_int32([entry[0] for entry in running.blocks]),
                    sampling=job.sampling,
                    adapter=job.adapter,
                    window_block_ids=pack_int32([i for entry in running.blocks for i in entry[1:]]),
                )
            )

    def _plan(self) -> dict[int, int]:
        plan: dict[int, int] = {}
        budget = self._budget
        rows = list(self._rows)
        if self._rng is not None:
            self._rng.shuffle(rows)
        for row in rows:
            count = min(self._rows[row].num_tokens - self._rows[row].num_computed, budget)
            if self._rng is not None and count > 1:
                count = self._rng.randint(1, count)
            if count and (self._rng is None or self._rng.random() < 0.85):
                plan[row] = count
                budget -= count
                self._grow(row, self._rows[row].num_computed + count)
        return plan

    def _grow(self, row: int, num_tokens: int) -> None:
        running = self._rows[row]
        while len(running.blocks) * self._block_size < num_tokens:
            running.blocks.append(self._take_entry())
            self._appended.append((row, running.blocks[-1]))

    def _take_entry(self) -> list[int]:
        return [self._take_block() for _ in range(self._num_groups)]

    def _take_block(self) -> int:
        return self._free_blocks.pop(self._pick(len(self._free_blocks)))

    def _pick(self, count: int) -> int:
        return 0 if self._rng is None else self._rng.randrange(count)


def _keep(into: dict[int, tuple[int, bytes, bytes]], entry: TokenLogprobs) -> None:
    """A recomputed prompt may be scored twice: then the second time has to say the same."""
    value = (entry.rank, entry.token_ids, entry.logprobs)
    assert into.setdefault(entry.token_index, value) == value
