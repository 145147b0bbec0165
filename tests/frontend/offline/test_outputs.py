"""What outputs add up to does not depend on how their tokens came."""

from __future__ import annotations

import pytest

from splitserve.frontend.engines.generation import OutputDelta, TokenLogprob
from splitserve.frontend.offline.outputs import CompletionOutput, RequestOutput, collect_outputs

LOGPROBS = [-0.1, -0.2, -0.3, -0.7, -1.1, -0.6, -1e-9, -13.1]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_the_sum_of_logprobs_has_the_same_bits_however_many_came_together(size: int) -> None:
    entries = [TokenLogprob(i, logprob, 1, []) for i, logprob in enumerate(LOGPROBS)]
    deltas = [
        OutputDelta(0, token_ids=[each.token_id for each in part], logprobs=part)
        for part in (entries[first : first + size] for first in range(0, len(entries), size))
    ]
    output = RequestOutput("0", None, [1], [CompletionOutput(0)])
    collect_outputs(output, deltas, None)
    expected = 0.0
    for logprob in LOGPROBS:
        expected += logprob
    assert output.outputs[0].cumulative_logprob == expected
    assert output.outputs[0].token_ids == list(range(8))
