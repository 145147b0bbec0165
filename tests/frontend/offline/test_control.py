"""What LLM and AsyncLLM tell of their engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitserve import LLM, AsyncLLM, BeamSearchParams, SamplingParams
from splitserve.frontend.offline.control.metrics import Counter, Gauge, Metric

pytestmark = pytest.mark.system

PREFIX = "splitserve:"


def value(metrics: list[Metric], name: str) -> float:
    (found,) = (each for each in metrics if each.name == PREFIX + name)
    assert isinstance(found, Counter | Gauge)
    return found.value


def test_figures_are_those_of_now(llm: LLM) -> None:
    before = llm.get_metrics()
    llm.generate([[1, 2, 3]] * 4, SamplingParams(max_tokens=5, ignore_eos=True), use_tqdm=False)
    after = llm.get_metrics()
    assert value(after, "generation_tokens_total") - value(before, "generation_tokens_total") == 20
    assert value(after, "num_requests_running") == 0
    assert all(each.name.startswith(PREFIX) for each in after)


async def test_an_async_model_searches_and_tells_its_figures(model: Path, llm: LLM) -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=4)
    async with AsyncLLM(str(model), executor="simulated", use_tqdm=False, num_threads=1) as other:
        assert await other.beam_search("Hello", params) == llm.beam_search("Hello", params)[0]
        assert value(await other.get_metrics(), "generation_tokens_total") > 0
