"""Structured outputs are grammars by the time an engine hears of them."""

from __future__ import annotations

import pytest
from llguidance import LLMatcher

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.engine_core.structured_outputs import StructuredOutputs
from splitserve.frontend.engines.generation import GenerationRequest
from tests.frontend.engines.conftest import MakePool
from tests.frontend.engines.fake_engine import DEADLINE_S, FakeEngine
from tests.frontend.text.grammar.matching import takes

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


def request(params: SamplingParams) -> GenerationRequest:
    return GenerationRequest("r", [40, 41], params)


async def test_an_engine_gets_a_grammar_that_takes_what_was_asked_for(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with FakeEngine(addresses[0], model) as engine:
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        params = SamplingParams(n=2, structured_outputs=StructuredOutputs(json=SCHEMA))
        (generation,) = await pool.open("m", [request(params)], lambda: None)
        for _ in range(2):
            sampling = (await engine.receive(AddRequest)).sampling
            assert sampling.grammar is not None
            assert takes(sampling.grammar, '{"x":1}')
            assert not takes(sampling.grammar, '{"x":"1"}')
        generation.close()


async def test_a_grammar_that_was_made_elsewhere_is_checked(
    addresses: list[str], model: ModelInfo, make_pool: MakePool
) -> None:
    async with FakeEngine(addresses[0], model) as engine:
        pool = await make_pool(addresses[0])
        await pool.wait_ready(DEADLINE_S)
        with pytest.raises(InvalidRequestError, match="grammar"):
            await pool.open("m", [request(SamplingParams(grammar="start: ("))], lambda: None)
        good = LLMatcher.grammar_from_lark('start: "a"')
        (generation,) = await pool.open("m", [request(SamplingParams(grammar=good))], lambda: None)
        assert (await engine.receive(AddRequest)).sampling.grammar == good
        generation.close()
