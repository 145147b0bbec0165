"""What LLM and AsyncLLM tell of their engine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from splitserve import LLM, AsyncLLM, BeamSearchParams, SamplingParams
from splitserve.engine_core.errors import EngineAsleepError, InvalidRequestError
from splitserve.frontend.offline.control.metrics import Counter, Gauge, Metric

pytestmark = pytest.mark.system

PREFIX = "splitserve:"
# Of the demo model: keys and values of 5 layers, 4 heads of 32 elements, 2 bytes each.
KV_BYTES_PER_TOKEN = 2 * 5 * 4 * 32 * 2


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


def test_a_model_that_sleeps_goes_on_with_the_same_tokens(llm: LLM) -> None:
    prompts = [[1, 2, 3, i] for i in range(4)]
    long = SamplingParams(max_tokens=120, ignore_eos=True, temperature=1.0, seed=3)
    expected = [each.outputs[0].token_ids for each in llm.generate(prompts, long, use_tqdm=False)]
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(llm.generate, prompts, long, use_tqdm=False)
        # Before it begins, while it runs or afterwards: it makes no difference.
        for level in (1, 2, 1, 2):
            llm.sleep(level)
            with pytest.raises(EngineAsleepError):
                llm.generate("Hello", use_tqdm=False)
            llm.wake_up(["weights", "kv_cache"])
        try:
            found = running.result(60)
        except EngineAsleepError:
            # It came while the model slept.
            found = llm.generate(prompts, long, use_tqdm=False)
    assert [each.outputs[0].token_ids for each in found] == expected


@pytest.mark.parametrize(("level", "tags", "param"), [(0, None, "level"), (2, ["weights"], "tags")])
def test_another_sleep_is_refused(llm: LLM, level: int, tags: list[str] | None, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.sleep(level) if level != 2 else llm.wake_up(tags)
    assert caught.value.param == param


@pytest.mark.slow
def test_a_model_that_sleeps_gives_up_what_its_level_says() -> None:
    ask = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    prompt = "The capital of France is"
    # A cache that many tokens fill, so that its memory shows.
    with LLM(use_tqdm=False, num_threads=1, max_num_seqs=8, num_blocks=4096) as llm:
        expected = llm.generate(prompt, ask, use_tqdm=False)[0].outputs
        engine = psutil.Process(llm._model.runner.engine_pid)
        (worker,) = engine.children(recursive=True)
        llm.generate([[4 + i] * 1500 for i in range(16)], SamplingParams(max_tokens=1), use_tqdm=False)
        before = worker.memory_info().rss
        llm.sleep()
        # Weights and libraries stay.
        assert before - worker.memory_info().rss > 16 * 1500 * KV_BYTES_PER_TOKEN // 2
        llm.wake_up()
        assert engine.children(recursive=True) == [worker]
        assert llm.generate(prompt, ask, use_tqdm=False)[0].outputs == expected
        llm.sleep(1)
        # Deeper: from here on there is no worker, until it is loaded again.
        llm.sleep(2)
        assert (worker.is_running(), engine.children()) == (False, [])
        llm.sleep(1)
        llm.wake_up()
        assert llm.generate(prompt, ask, use_tqdm=False)[0].outputs == expected
        llm.sleep(1)
        # Nobody needs it before the model wakes up.
        (worker,) = engine.children(recursive=True)
        worker.kill()
        llm.wake_up()
        assert llm.generate(prompt, ask, use_tqdm=False)[0].outputs == expected
        llm.sleep()
    assert not engine.is_running()
