"""What streams with drafts and without are asked for: the same, others in each round, and of the kind."""

from __future__ import annotations

import pytest

from benchmarks.drafted_streams import METHODS, NUM_PROMPT_TOKENS, REPEATS, make_work
from splitserve.engine_core.settings.speculation import parse_speculation


@pytest.mark.parametrize("kind", METHODS)
def test_a_rounds_work_is_the_same_for_both_engines_and_another_in_the_next_round(kind: str) -> None:
    work = make_work(kind, 50, 3, 20, seed=1000)
    assert make_work(kind, 50, 3, 20, seed=1000) == work
    assert make_work(kind, 50, 3, 20, seed=2000).prompts != work.prompts
    assert len(work.prompts) == len(work.sampling) == 3
    for sampling in work.sampling:
        sampling.validate(50, 0)
        assert sampling.max_tokens == 20


def test_a_repeated_text_is_repeated_and_a_random_one_is_not() -> None:
    for kind, times in (("repeated", REPEATS), ("random", 1)):
        for prompt in make_work(kind, 50, 2, 20, seed=1).prompts:
            assert len(prompt) == NUM_PROMPT_TOKENS * times
            assert list(prompt[:NUM_PROMPT_TOKENS]) * times == prompt


@pytest.mark.parametrize("methods", METHODS.values())
def test_methods_are_those_of_a_server(methods: list[str]) -> None:
    names = ", ".join(f'"{method}"' for method in methods)
    speculation = parse_speculation("auto", f'{{"method": [{names}]}}')
    assert speculation is not None
    assert list(speculation.methods) == methods
