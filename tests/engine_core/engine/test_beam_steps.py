"""What the engine takes of a beam search: steps of one token with many logprobs, not the search itself."""

from __future__ import annotations

import pytest

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.executor.simulated.tokens import TokenRule
from splitserve.engine_core.sequence_sampling import MAX_STEP_LOGPROBS
from tests.engine_core.engine_driver import EngineDriver

CONFIG = SchedulerConfig(
    max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64, block_size=4, num_blocks=32
)


def test_a_step_may_ask_for_many_logprobs() -> None:
    driver = EngineDriver(CONFIG, TokenRule(400, (0,)))
    sequence = driver.add([1, 2, 3], max_tokens=1, logprobs=MAX_STEP_LOGPROBS)
    driver.run()
    assert [len(entry.token_ids) for entry in sequence.logprobs] == [4 * (1 + MAX_STEP_LOGPROBS)]
    with pytest.raises(InvalidRequestError, match=f"0 to {MAX_STEP_LOGPROBS}"):
        driver.add([1], logprobs=MAX_STEP_LOGPROBS + 1)
    with pytest.raises(InvalidRequestError, match=f"0 to {MAX_STEP_LOGPROBS}"):
        driver.add([1], prompt_logprobs=MAX_STEP_LOGPROBS + 1)
