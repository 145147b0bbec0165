"""What a client expects travels to the worker where it drafts, and is dropped where nothing does."""

from __future__ import annotations

import pytest

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.sequence_sampling import SequenceSampling

EXPECTED = pack_int32([4, 5, 6])


def engine(num_drafts: int) -> EngineCore:
    config = SchedulerConfig(max_model_len=32, num_blocks=8, num_speculative_tokens=num_drafts)
    return EngineCore(config, ModelInfo("model", "X", "float32", 50, 64, []), 7, ManualClock())


def request(predicted: bytes) -> AddRequest:
    return AddRequest(1, "r", pack_int32([1, 2]), SequenceSampling(seed=0), predicted_token_ids=predicted)


@pytest.mark.parametrize(("num_drafts", "sent"), [(2, EXPECTED), (0, b"")])
def test_it_is_sent_where_tokens_are_drafted(num_drafts: int, sent: bytes) -> None:
    core = engine(num_drafts)
    core.add(b"f", request(EXPECTED))
    step = core.plan()
    assert step is not None
    assert [new.predicted_token_ids for new in step.new_rows] == [sent]


@pytest.mark.parametrize(
    ("predicted", "problem"), [([50], "holds token id 50"), ([3] * 33, "at most 32 tokens, got 33")]
)
def test_one_that_cannot_be_an_output_is_rejected(predicted: list[int], problem: str) -> None:
    core = engine(2)
    with pytest.raises(InvalidRequestError, match=problem) as refused:
        core.add(b"f", request(pack_int32(predicted)))
    assert refused.value.param == "prediction"
