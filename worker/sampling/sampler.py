"""From logits to tokens: every sampling parameter of every row, each row independent of the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from splitserve.engine_core.ipc.wire import TokenLogprobs
from splitserve.engine_core.ipc.worker_messages import RowError
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.row_faults import may_be_a_rows, row_fault
from splitserve.worker.batch.runs import Runs
from splitserve.worker.batch.sampling_state import ADJUSTING, MASKED, MASKING, Feature, SamplingState
from splitserve.worker.batch.step_graphs import RowMasks
from splitserve.worker.device.base import Device
from splitserve.worker.grammar.compiler import GrammarCompiler
from splitserve.worker.grammar.row_grammars import RowGrammars
from splitserve.worker.ops.columns import Array, DrawColumns, Index, Int32, SamplingColumns, allocate
from splitserve.worker.sampling.allowed_masks import AllowedMasks, mask_table
from splitserve.worker.sampling.logit_edits import LogitEditor
from splitserve.worker.sampling.logprobs import NO_RANK, Wanted, gather_logprobs, numerical_error

# In place of a sampled token id, as the kernel says it: the logits hold a NaN; all of them are -inf.
_NOT_A_NUMBER = -1
_NOTHING_LEFT = -2


class Sampled(NamedTuple):
    """What one call of the sampler chose.

    Attributes:
        rows: int32 [m] rows that got tokens.
        token_ids: int32, one of each; or a run of each, one after the other.
        logprobs: of the rows that asked, `key` is the row.
        errors: rows whose logits hold a NaN, whose parameters forbid every token, or which raised an
            exception.
        run_lengths: int32 [m], at least 1, of the runs; None if each row got one token.
        num_drafts: int32 [m], how many drafts each row had; comes with run_lengths.
    """

    rows: Int32
    token_ids: Int32
    logprobs: list[TokenLogprobs]
    errors: list[RowError]
    run_lengths: Int32 | None = None
    num_drafts: Int32 | None = None

    @property
    def last_token_ids(self) -> Int32:
        """The token of each row, or the last one of its run."""
        return self.token_ids if self.run_lengths is None else self.token_ids[self.run_lengths.cumsum() - 1]

    def without(self, failures: Collection[int]) -> Sampled:
        """Return this without rows that had failed before."""
        keep = ~np.isin(self.rows, list(failures))
        lengths, drafts = self.run_lengths, self.num_drafts
        return Sampled(
            self.rows[keep],
            self.token_ids[keep if lengths is None else keep.repeat(lengths)],
            [entry for entry in self.logprobs if entry.key not in failures],
            [error for error in self.errors if error.row not in failures],
            None if lengths is None else lengths[keep],
            None if drafts is None else drafts[keep],
        )


class _Places(NamedTuple):
    """Where tokens are drawn: int32 [S] rows of the batch and the numbers of tokens in front."""

    rows: Int32
    lengths: Int32

    def select(self, which: npt.NDArray[np.intp]) -> _Places:
        return _Places(self.rows[which], self.lengths[which])


class _Chosen(NamedTuple):
    """Tokens int32 [S], negative where there is none; logprobs of some; the rows that raised exceptions."""

    token_ids: Int32
    logprobs: list[TokenLogprobs]
    faults: dict[int, RowError]


class _Gathered:
    """The kernel arguments for the rows of a step, in tensors reused while the number of rows is the same."""

    def __init__(self, device: Device, batch: InputBatch, count: int) -> None:
        """Args: batch owns the columns; count of rows, at most max_num_seqs."""
        self.count = count
        self._device = device
        # In the order of the kernel's arguments; the token to be drawn stands behind all known ones.
        gathered = allocate(SamplingColumns[Array], count)
        self._positions = allocate(DrawColumns[Array], count).positions
        self._pairs = list(zip(batch.sampling.columns, gathered, strict=True))
        self._tensors = [torch.from_numpy(column) for column in (*gathered, self._positions)]

    def take(self, index: Index, lengths: Int32) -> Sequence[torch.Tensor]:
        """Gather the rows of `index` [count]; the tensors hold them until the next call."""
        for column, gathered in self._pairs:
            gathered[:] = column[index]
        self._positions[:] = lengths
        return self._device.place(self._tensors)


class Sampler:
    """Applies, in this order: logit_bias, masks, penalties, temperature, min_p, top_k, top_p, noise.

    The masks are allowed_token_ids, grammar, bad words and min_tokens; a masked token is never drawn. The
    device is waited for once for the tokens, and again where logprobs are asked for.

    The noise of a token is a hash of the row's seed, the token's position and the token id, so a draw depends
    on nothing else. Logprobs are those of the model's own logits, before any of the above.

    Attributes:
        batch: owns the rows.
        grammars: of the rows.
    """

    def __init__(
        self, device: Device, batch: InputBatch, compiler: GrammarCompiler, num_mask_threads: int = 1
    ) -> None:
        """Build a sampler.

        Args:
            device: of the logits.
            batch: owns the rows; its columns are read and never appended to.
            compiler: of the rows' grammars.
            num_mask_threads: threads that make masks of grammars, beside the device.
        """
        self._device = device
        self.batch = batch
        self._state = batch.sampling
        self._editor = LogitEditor(device, batch)
        masks = mask_table(batch)
        self.grammars = RowGrammars(batch, compiler, masks, num_mask_threads)
        self._masks = AllowedMasks(device, batch, masks)
        self._gathered = _Gathered(device, batch, 0)

    def sample(self, logits: torch.Tensor, rows: Int32) -> Sampled:
        """Choose one token per row.

        Args:
            logits: float32 [S, V], changed in place.
            rows: int32 [S], distinct rows of the batch; logits[i] belongs to rows[i].
        """
        token_ids, logprobs, faults = self._choose(logits, _Places(rows, self.batch.num_tokens[rows]))
        return _with_faults(split_errors(rows, token_ids, logprobs, self._state), faults)

    def sample_runs(self, logits: torch.Tensor, runs: Runs) -> Sampled:
        """Choose a run of tokens per row: what it would be given one by one, as far as its drafts go.

        Args:
            logits: float32 [S, V], changed in place.
            runs: of rows of the batch, whose drafts stand behind their known tokens.
        """
        batch = self.batch
        token_ids, logprobs, faults = self._choose(logits, _Places(runs.rows, runs.lengths))
        accepted = runs.accept(token_ids, batch.tokens[runs.rows, runs.lengths])
        # What could not be drawn behind a draft is nobody's error: without drafts it may never be drawn.
        firsts = split_errors(runs.rows[runs.first], token_ids[runs.first], [], self._state)
        counts = dict(zip(runs.rows[runs.first].tolist(), accepted.tolist(), strict=True))
        begins = batch.num_tokens - batch.num_prompt_tokens
        logprobs = [entry for entry in logprobs if entry.token_index < begins[entry.key] + counts[entry.key]]
        has_run = accepted > 0
        taken = token_ids[runs.taken(accepted)]
        rows = runs.rows[runs.first][has_run]
        lengths, drafts = accepted[has_run], runs.num_drafts[has_run]
        return _with_faults(Sampled(rows, taken, logprobs, firsts.errors, lengths, drafts), faults)

    def _choose(self, logits: torch.Tensor, places: _Places) -> _Chosen:
        rows, lengths = places
        # Convert once: numpy converts an int32 index on every lookup, at 0.5 us each.
        index = rows.astype(np.intp)
        features = int(np.bitwise_or.reduce(self._state.features[index], initial=0))
        faults: dict[int, RowError] = {}
        if not features:
            return _Chosen(self._draw(logits, index, lengths, features, faults), [], faults)
        if features & Feature.GRAMMAR:
            self._settle(rows, faults)
        asking = self._state.rows_with(Feature.LOGPROBS, rows)
        raw, raw_indices = logits, asking
        if features & ADJUSTING:
            raw, raw_indices = logits[self._place(asking)], np.arange(len(asking))
            self._adjust(logits, places, faults)
        token_ids = self._draw(logits, index, lengths, features, faults)
        has_token = token_ids[asking] >= 0
        asking, raw_indices = asking[has_token], raw_indices[has_token]
        logprobs = self._logprobs_or_faults(
            raw, raw_indices, places.select(asking), token_ids[asking], faults
        )
        if any(entry.rank == NO_RANK for entry in logprobs):
            broken = {(entry.key, entry.token_index) for entry in logprobs if entry.rank == NO_RANK}
            indices = lengths - self.batch.num_prompt_tokens[rows]
            is_broken = [pair in broken for pair in zip(rows.tolist(), indices.tolist(), strict=True)]
            token_ids[is_broken] = _NOT_A_NUMBER
            logprobs = [entry for entry in logprobs if entry.rank != NO_RANK]
        return _Chosen(token_ids, logprobs, faults)

    def sample_alone(self, logits: torch.Tensor, row: Int32) -> Sampled:
        """Choose a token for one row; an exception that may be its own fault becomes its error."""
        try:
            return self.sample(logits, row)
        except Exception as error:
            if not may_be_a_rows(error):
                raise
            return Sampled(row[:0], row[:0], [], [row_fault(int(row[0]), error)])

    def draw(self, logits: torch.Tensor, rows: Int32, lengths: Int32) -> Int32:
        """Choose a token at a place of each row, for drafts: as it is sampled, but nobody hears of errors.

        Args:
            logits: float32 [S, V], changed in place.
            rows: int32 [S], distinct rows of the batch without a grammar.
            lengths: int32 [S], tokens in front of the place, which stand in the batch.

        Returns:
            int32 [S], negative where there is no token.
        """
        index = rows.astype(np.intp)
        features = int(np.bitwise_or.reduce(self._state.features[index], initial=0))
        faults: dict[int, RowError] = {}
        try:
            if features & ADJUSTING:
                self._adjust(logits, _Places(rows, lengths), faults)
            token_ids = self._draw(logits, index, lengths, features, faults)
        except Exception as error:
            if not may_be_a_rows(error):
                raise
            return np.full(len(rows), _NOT_A_NUMBER, np.int32)
        return (
            np.where(np.isin(rows, list(faults)), np.int32(_NOT_A_NUMBER), token_ids) if faults else token_ids
        )

    def masks(self, rows: Int32) -> RowMasks | None:
        """Return what the kernel needs to sample rows that have no feature but masks.

        Args:
            rows: int32 [S], distinct rows of the batch.

        Returns:
            None if one of the rows fails: sample() then says which, and why.
        """
        faults: dict[int, RowError] = {}
        self._settle(rows, faults)
        index = rows.astype(np.intp)
        masks = self._masks.take(index, index, faults)
        return None if faults else masks

    def took(self, rows: Int32, token_ids: Int32, lengths: Int32 | None = None) -> None:
        """Note that rows were given these tokens, or runs of tokens; call once for each."""
        self.grammars.took(rows, token_ids, lengths)

    def _settle(self, rows: Int32, faults: dict[int, RowError]) -> None:
        constrained = rows[self._state.rows_with(Feature.GRAMMAR, rows)]
        self.grammars.settle(constrained, faults)

    def _adjust(self, logits: torch.Tensor, places: _Places, faults: dict[int, RowError]) -> None:
        self._editor.apply(logits, *places, faults)
        penalised = self._state.rows_with(Feature.PENALTIES, places.rows)
        if len(penalised):
            self._penalise(logits, places.select(penalised), penalised)

    def _penalise(self, logits: torch.Tensor, places: _Places, indices: npt.NDArray[np.intp]) -> None:
        state, batch = self._state, self.batch
        chosen, lengths = places
        columns = (
            indices.astype(np.int32),
            batch.num_prompt_tokens[chosen],
            lengths,
            state.repetition[chosen],
            state.frequency[chosen],
            state.presence[chosen],
        )
        which, *rest = self._device.place([torch.from_numpy(column) for column in columns])
        history = self._device.histories(batch.tokens, chosen, int(lengths.max()))
        self._device.ops.sampling.apply_penalties(logits, which, history.token_ids, history.rows, *rest)

    def _place(self, array: npt.NDArray[np.intp]) -> torch.Tensor:
        """Indices on the device of the logits."""
        return self._device.place([torch.from_numpy(array)])[0]

    def _draw(
        self, logits: torch.Tensor, index: Index, lengths: Int32, features: int, faults: dict[int, RowError]
    ) -> Int32:
        """Returns int32 [S], _NOT_A_NUMBER or _NOTHING_LEFT where there is no token."""
        if len(index) != self._gathered.count:
            self._gathered = _Gathered(self._device, self.batch, len(index))
        token_ids = self._device.empty((len(index),), torch.int32)
        masks: RowMasks | tuple[()] = ()
        if features & MASKED:
            # A row may have been another's a step ago, whose grammar's mask is still written.
            self.grammars.wait()
            masks = self._masks.take(index, self.grammars.draft_masks.places(index, lengths), faults)
        self._device.ops.sampling.sample(token_ids, logits, *self._gathered.take(index, lengths), *masks)
        return self._device.fetch(token_ids)

    def _logprobs_or_faults(
        self,
        raw: torch.Tensor,
        indices: npt.NDArray[np.intp],
        places: _Places,
        token_ids: Int32,
        faults: dict[int, RowError],
    ) -> list[TokenLogprobs]:
        """Logprobs of all rows; if that raises, of each alone, and `faults` gets those that raise again."""
        try:
            return self._logprobs(raw, indices, places, token_ids)
        except Exception as error:
            if not may_be_a_rows(error):
                raise
        found: list[TokenLogprobs] = []
        for i, row in enumerate(places.rows.tolist()):
            one = np.array([i])
            try:
                found += self._logprobs(raw, indices[one], places.select(one), token_ids[one])
            except Exception as error:
                if not may_be_a_rows(error):
                    raise
                faults[row] = row_fault(row, error)
        return found

    def _logprobs(
        self, raw: torch.Tensor, indices: npt.NDArray[np.intp], places: _Places, token_ids: Int32
    ) -> list[TokenLogprobs]:
        """Logprobs of the token at each of `places`, whose unmodified logits are raw[indices]."""
        rows, lengths = places
        wanted = Wanted(
            keys=rows,
            indices=indices.astype(np.int32),
            token_ids=token_ids,
            token_indices=lengths - self.batch.num_prompt_tokens[rows],
            num_top=self._state.num_logprobs[rows],
            asked={
                i: self._state.logprob_token_ids[int(rows[i])]
                for i in self._state.rows_with(Feature.LOGPROB_TOKEN_IDS, rows).tolist()
            },
        )
        return gather_logprobs(self._device, raw, wanted)


def split_errors(
    rows: Int32, token_ids: Int32, logprobs: list[TokenLogprobs], state: SamplingState
) -> Sampled:
    """Turn the rows whose token is negative into errors; state says which of them forbid tokens."""
    if token_ids.min(initial=0) >= 0:
        return Sampled(rows, token_ids, logprobs, [])
    good = token_ids >= 0
    errors = [
        nothing_left_error(row)
        if token_id == _NOTHING_LEFT and state.features[row] & MASKING
        else numerical_error(row)
        for row, token_id in zip(rows[~good].tolist(), token_ids[~good].tolist(), strict=True)
    ]
    return Sampled(rows[good], token_ids[good], logprobs, errors)


def _with_faults(sampled: Sampled, faults: dict[int, RowError]) -> Sampled:
    if not faults:
        return sampled
    sampled = sampled.without(faults)
    return sampled._replace(errors=[*sampled.errors, *faults.values()])


def nothing_left_error(row: int) -> RowError:
    """The error of a row whose parameters forbid every token; the request is to blame, hence 400."""
    message = "allowed_token_ids, bad_words, min_tokens and grammar together leave no token to choose from"
    return RowError(row, "no_token_left", message, 400)
