"""How does a step with drafts run in a CUDA graph? As a decode step of as many rows as it has tokens.

Each token is a row of the graph, with the blocks of its own row and the tokens in front of it: keys and
values of a layer are all written before any token attends. So the graphs of decode steps serve every number
of rows and drafts, and a draft is computed by the very kernels that would compute it as a token. The keys and
values of a row are read once for each of its tokens, which costs little beside the weights, as there are few.
"""

from __future__ import annotations

import torch

from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.graphs.cuda_graphs import CudaGraphs


class CudaDraftedGraphs:
    """See worker.batch.step_graphs.DraftedStepGraphs.

    Args:
        graphs: of the model's decode steps.
    """

    def __init__(self, graphs: CudaGraphs) -> None:
        self._graphs = graphs

    @property
    def is_at_speed(self) -> bool:
        """Whether the last step took as long as steps of its size will from now on."""
        return self._graphs.is_at_speed

    def prepare(self, inputs: StepInputs) -> bool:
        """See DraftedStepGraphs: a graph that is missing is captured here."""
        return self._graphs.prepare_rows(len(inputs.token_ids))

    def forward(self, inputs: StepInputs) -> torch.Tensor | None:
        """Run the model if every row computes its last known token and drafts; else return None.

        It also returns None if there are more tokens than the largest graph has rows.

        Returns:
            The hidden states of all tokens, [T, H], valid until the next step.
        """
        return self._graphs.forward_rows(inputs.by_token()) if inputs.only_decodes else None
