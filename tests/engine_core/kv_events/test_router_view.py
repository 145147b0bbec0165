"""A router that knows payloads only predicts the prefix hits of any prompt, by its tokens.

That it holds exactly the engine's blocks is checked by the engine driver, in every random life of an engine.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from splitserve.engine_core.config import SchedulerConfig
from tests.engine_core.engine.test_engine_properties import SETTINGS
from tests.engine_core.engine_driver import EngineDriver
from tests.engine_core.requests import make_request

KEYS = {("", ""): (), ("", "s"): ("s",), ("t", ""): ("", "t"), ("t", "s"): ("s", "t")}

prompts = st.tuples(
    st.sampled_from([[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 9, 9], [1, 2], []]),
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
).map(lambda parts: parts[0] + parts[1])


@SETTINGS
@given(
    num_blocks=st.integers(22, 30),
    block_size=st.integers(1, 4),
    arrivals=st.lists(st.tuples(prompts, st.sampled_from(sorted(KEYS)), st.integers(1, 6)), min_size=1),
)
def test_a_router_predicts_the_hits_of_every_prompt(
    num_blocks: int, block_size: int, arrivals: list[tuple[list[int], tuple[str, str], int]]
) -> None:
    config = SchedulerConfig(max_num_seqs=2, max_model_len=20, block_size=block_size, num_blocks=num_blocks)
    driver = EngineDriver(config)
    kv = driver.engine.scheduler.kv
    for prompt, (tenant, salt), max_tokens in arrivals:
        driver.add(prompt, tenant=tenant, cache_salt=salt, max_tokens=max_tokens)
        driver.turn()
        for known, (other_tenant, other_salt), _max_tokens in arrivals:
            request = make_request(known, namespace=kv.cache.index.namespace(other_tenant, other_salt))
            # The last token is always computed, so it is not looked for.
            found = driver.router.num_cached_blocks(known[:-1], block_size, KEYS[other_tenant, other_salt])
            assert found == len(kv.find_prefix(request))
    driver.run()
