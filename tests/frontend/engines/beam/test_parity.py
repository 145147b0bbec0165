"""Beam search over the real engine and worker finds the outputs that transformers finds, token for token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pytest
import torch

from splitserve.engine_core.sampling_params import MAX_N, SamplingParams
from splitserve.engine_core.sequence_sampling import MAX_STOP_TOKEN_IDS
from splitserve.frontend.engines.generation import OutputDelta
from tests.checkpoints import EOS_TOKEN_ID, CheckpointCache, load_reference
from tests.frontend.engines.beam.inproc_client import InprocClient
from tests.worker.models.cases import CASES, FEW_CASES, prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NUM_TOKENS = 14


@dataclass
class Pair:
    """One checkpoint here and there."""

    client: InprocClient
    theirs: PreTrainedModel

    def reference(
        self, prompt_ids: list[int], width: int, end_ids: list[int], **options: Any
    ) -> list[tuple[float, list[int]]]:
        """Scores and outputs of transformers, best first, without padding."""
        with torch.inference_mode():
            made = self.theirs.generate(
                torch.tensor([prompt_ids]),
                attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.int64),
                do_sample=False,
                num_beams=width,
                eos_token_id=end_ids or None,
                pad_token_id=EOS_TOKEN_ID,
                return_dict_in_generate=True,
                output_scores=True,
                **({"num_return_sequences": width, "max_new_tokens": NUM_TOKENS} | options),
            )
        outputs = [row[len(prompt_ids) :].tolist() for row in made.sequences]
        return [
            (score, cut(output, end_ids))
            for score, output in zip(made.sequences_scores.tolist(), outputs, strict=True)
        ]


def cut(output: list[int], end_ids: list[int]) -> list[int]:
    """What an end is followed by is padding."""
    ends = [i for i, token_id in enumerate(output) if token_id in end_ids]
    return output[: ends[0] + 1] if ends else output


def rate(delta: OutputDelta, length_penalty: float = 1.0) -> float:
    return sum(entry.logprob for entry in delta.logprobs) / len(delta.token_ids) ** length_penalty


@pytest.fixture(scope="module", params=["llama-gqa-untied", *FEW_CASES])
def pair(request: pytest.FixtureRequest, checkpoints: CheckpointCache) -> Iterator[Pair]:
    directory = checkpoints.get(CASES[request.param])
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Pair(InprocClient(directory), load_reference(directory, torch.float32))
    torch.set_num_threads(before)


def frequent(pair: Pair, prompt_ids: list[int], count: int) -> list[int]:
    """Tokens that beams without an end come across often, so that as ends they end many of them early."""
    found = pair.reference(prompt_ids, 6, [])
    seen = Counter(token_id for _, output in found for token_id in output[1:-1])
    return [token_id for token_id, _ in seen.most_common(count)]


def params(width: int, **options: Any) -> SamplingParams:
    given = {"n": width, "max_tokens": NUM_TOKENS, "logprobs": 0, "ignore_eos": True} | options
    return SamplingParams(use_beam_search=True, **given)


async def check(
    pair: Pair, prompt_ids: list[int], sampling: SamplingParams, **options: Any
) -> list[OutputDelta]:
    """Compare outputs, scores and reasons; returns ours."""
    width, end_ids = sampling.best_of or sampling.n, list(sampling.stop_token_ids)
    expected = pair.reference(
        prompt_ids,
        width,
        end_ids,
        num_return_sequences=sampling.n,
        max_new_tokens=sampling.max_tokens,
        length_penalty=sampling.length_penalty,
        early_stopping=sampling.early_stopping,
        **options,
    )
    ours = await pair.client.search(prompt_ids, sampling)
    assert [delta.token_ids for delta in ours] == [output for _, output in expected]
    rates = [rate(delta, sampling.length_penalty) for delta in ours]
    assert rates == pytest.approx([score for score, _ in expected], rel=1e-4, abs=1e-4)
    for delta in ours:
        ended = delta.token_ids[-1] in end_ids
        assert delta.finish_reason == ("stop" if ended else "length")
        assert delta.stop_reason == (delta.token_ids[-1] if ended else None)
    return ours


@pytest.mark.parametrize("width", [2, 4, 7, 16])
async def test_outputs_of_full_length(pair: Pair, width: int) -> None:
    prompt_ids = prompt(331, 9, seed=width)
    ours = await check(pair, prompt_ids, params(width))
    assert [len(delta.token_ids) for delta in ours] == [NUM_TOKENS] * width


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 1.5, -1.0])
async def test_outputs_that_end_early(
    pair: Pair, early_stopping: bool | Literal["never"], length_penalty: float
) -> None:
    lengths: set[int] = set()
    for num_ends, width in ((1, 3), (2, 4), (5, 2), (8, 5)):
        prompt_ids = prompt(331, 5 + width, seed=num_ends)
        ends = frequent(pair, prompt_ids, num_ends)
        sampling = params(
            width, stop_token_ids=tuple(ends), length_penalty=length_penalty, early_stopping=early_stopping
        )
        ours = await check(pair, prompt_ids, sampling)
        lengths |= {len(delta.token_ids) for delta in ours if delta.finish_reason == "stop"}
    # A strong penalty favours length so much that only full outputs are left.
    assert len(lengths) > 1 or length_penalty > 1


@pytest.mark.parametrize("min_tokens", [1, 3, NUM_TOKENS - 1, NUM_TOKENS])
async def test_no_end_before_min_tokens(pair: Pair, min_tokens: int) -> None:
    prompt_ids = prompt(331, 6, seed=21)
    ends = frequent(pair, prompt_ids, 6)
    sampling = params(4, stop_token_ids=tuple(ends), min_tokens=min_tokens)
    ours = await check(pair, prompt_ids, sampling, min_new_tokens=min_tokens)
    assert min(len(delta.token_ids) for delta in ours) >= min_tokens


async def test_as_many_ends_and_beams_as_there_may_be(pair: Pair) -> None:
    ends = tuple(range(5, 5 + 2 * MAX_STOP_TOKEN_IDS, 2))
    for min_tokens in (0, 4):
        sampling = params(MAX_N, stop_token_ids=ends, min_tokens=min_tokens)
        ours = await check(pair, prompt(331, 6, seed=9), sampling, min_new_tokens=min_tokens or None)
        assert any(delta.finish_reason == "stop" for delta in ours)


async def test_fewer_outputs_than_beams(pair: Pair) -> None:
    prompt_ids = prompt(331, 8, seed=5)
    ends = frequent(pair, prompt_ids, 3)
    await check(pair, prompt_ids, params(2, best_of=6, stop_token_ids=tuple(ends)))
    await check(pair, prompt_ids, params(1, best_of=5, max_tokens=1))


async def test_the_models_own_ends_count_unless_ignored(pair: Pair) -> None:
    prompt_ids = prompt(331, 7, seed=4)
    ends = frequent(pair, prompt_ids, 4)
    client, served = pair.client, pair.client.served
    client.served = replace(served, info=msgspec.structs.replace(served.info, eos_token_ids=ends[:3]))
    try:
        sampling = params(4, ignore_eos=False, stop_token_ids=(ends[3],))
        found = await client.search(prompt_ids, sampling)
    finally:
        client.served = served
    expected = pair.reference(prompt_ids, 4, ends)
    assert [delta.token_ids for delta in found] == [output for _, output in expected]
    assert any(delta.finish_reason == "stop" for delta in found)
    for delta in found:
        assert delta.stop_reason == (ends[3] if delta.token_ids[-1] == ends[3] else None)


async def test_a_search_up_to_the_contexts_end(pair: Pair) -> None:
    prompt_ids = prompt(331, 512 - 6, seed=8)
    ours = await check(pair, prompt_ids, params(3, max_tokens=6))
    unbounded = await pair.client.search(prompt_ids, params(3, max_tokens=None))
    assert [delta.token_ids for delta in unbounded] == [delta.token_ids for delta in ours]


async def test_beams_share_the_blocks_of_their_prompt(pair: Pair) -> None:
    client, prompt_ids = pair.client, prompt(331, 200, seed=30)
    client.engine.reset_prefix_cache()
    before = client.num_computed
    await client.search(prompt_ids, params(4))
    # The prompt once; then at most a block of 4 tokens for each of 4 beams and 13 further steps.
    assert client.num_computed - before <= 200 + 4 * 4 * (NUM_TOKENS - 1)
