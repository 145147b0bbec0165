"""An exception in the work for one row ends that row's request; the others' tokens stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch import sampling_state
from splitserve.worker.config import WorkerConfig
from splitserve.worker.sampling import allowed_masks, prompt_scorer, sampler
from splitserve.worker.sampling.logit_edits import LogitEditor
from splitserve.worker.sampling.logprobs import gather_logprobs
from splitserve.worker.worker import Worker
from tests.worker.runner.conftest import NUM_BLOCKS
from tests.worker.runner.driver import Driver, Job

# A prompt token, token id or number by which the scripted faults know the sick request.
SICK = 13
NUM_OUTPUTS = 5

Break = Callable[[pytest.MonkeyPatch], None]


def jobs(sick: dict[str, Any]) -> list[Job]:
    """Five requests, the third of which is sick."""
    common: dict[str, Any] = {"logit_bias": {5: 1.0}, "logprobs": 1, "allowed_token_ids": tuple(range(40))}
    rows = [SequenceSampling(seed=i, **(common if i % 2 else {})) for i in range(5)]
    rows[2] = SequenceSampling(seed=2, **sick)
    return [Job([4, 5 + i, 6, 9], row, NUM_OUTPUTS) for i, row in enumerate(rows)]


def raise_if(condition: bool) -> None:
    if condition:
        raise ValueError(f"scripted: {SICK}")


def break_edits(patch: pytest.MonkeyPatch) -> None:
    real = LogitEditor._of_row

    def of_row(self: LogitEditor, row: int, length: int) -> Any:
        raise_if(SICK in self._state.logit_bias.get(row, ((),))[0])
        return real(self, row, length)

    patch.setattr(LogitEditor, "_of_row", of_row)


def break_mask(patch: pytest.MonkeyPatch) -> None:
    real = allowed_masks._mask_of

    def mask_of(token_ids: Any, num_words: int) -> Any:
        raise_if(token_ids.tolist() == [SICK])
        return real(token_ids, num_words)

    patch.setattr(allowed_masks, "_mask_of", mask_of)


def break_parameters(patch: pytest.MonkeyPatch) -> None:
    real = sampling_state._logit_bias

    def logit_bias(params: SequenceSampling) -> Any:
        raise_if(SICK in params.logit_bias)
        return real(params)

    patch.setattr(sampling_state, "_logit_bias", logit_bias)


def break_logprobs(patch: pytest.MonkeyPatch) -> None:
    real = gather_logprobs

    def gather(device: Any, logits: Any, wanted: Any) -> Any:
        raise_if(any(SICK in asked for asked in wanted.asked.values()))
        return real(device, logits, wanted)

    patch.setattr(sampler, "gather_logprobs", gather)


def break_prompt_logprobs(patch: pytest.MonkeyPatch) -> None:
    real = gather_logprobs

    def gather(device: Any, logits: Any, wanted: Any) -> Any:
        raise_if(3 in wanted.num_top)
        return real(device, logits, wanted)

    patch.setattr(prompt_scorer, "gather_logprobs", gather)


def break_penalties(patch: pytest.MonkeyPatch) -> None:
    real = sampler.Sampler._penalise

    def penalise(self: Any, logits: Any, places: Any, indices: Any) -> None:
        # As a kernel that checks its arguments: after the logits of other rows were changed.
        logits[:, 4] += 100.0
        raise_if(bool(np.any(self._state.frequency[places.rows] == 1.5)))
        logits[:, 4] -= 100.0
        real(self, logits, places, indices)

    patch.setattr(sampler.Sampler, "_penalise", penalise)


FAULTS: list[tuple[Break, dict[str, Any]]] = [
    (break_parameters, {"logit_bias": {SICK: 1.0}}),
    (break_edits, {"logit_bias": {SICK: 1.0}}),
    (break_mask, {"allowed_token_ids": (SICK,)}),
    (break_logprobs, {"logprobs": 0, "logprob_token_ids": (SICK,)}),
    (break_prompt_logprobs, {"prompt_logprobs": 3}),
    (break_penalties, {"frequency_penalty": 1.5}),
]


@pytest.mark.parametrize(("breaks", "sick"), FAULTS, ids=[each.__name__ for each, _ in FAULTS])
def test_an_exception_ends_its_own_request_and_no_other(
    breaks: Break,
    sick: dict[str, Any],
    tiny_worker: tuple[Worker, WorkerConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, config = tiny_worker
    undisturbed = jobs(sick)
    Driver(worker, config, NUM_BLOCKS).run(undisturbed)
    assert [job.error for job in undisturbed] == [None] * 5
    breaks(monkeypatch)
    disturbed = jobs(sick)
    Driver(worker, config, NUM_BLOCKS).run(disturbed)
    error = disturbed[2].error
    assert error is not None
    assert (error.code, error.status, str(SICK) in error.message) == ("request_failed", 500, True)
    assert disturbed[2].tokens == []
    del undisturbed[2], disturbed[2]
    assert disturbed == undisturbed


@pytest.mark.parametrize("error", [RuntimeError("CUDA error: an illegal access"), WorkerError("lost")])
def test_a_fault_of_the_device_or_of_the_ranks_ends_the_worker(
    error: Exception, tiny_worker: tuple[Worker, WorkerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, config = tiny_worker

    def penalise(*_: object) -> None:
        raise error

    monkeypatch.setattr(sampler.Sampler, "_penalise", penalise)
    with pytest.raises(type(error)):
        Driver(worker, config, NUM_BLOCKS).run(jobs({"frequency_penalty": 1.5}))
    # The next test finds an empty batch.
    monkeypatch.undo()
    worker.init_kv_cache(NUM_BLOCKS)
