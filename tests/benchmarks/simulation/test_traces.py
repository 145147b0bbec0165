"""Synthetic traces have the properties asked for; recorded ones are read or refused by line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulation.recorded import read_trace
from benchmarks.simulation.settings import KEYS, MEASURED, make_settings
from benchmarks.simulation.synthetic import make_trace
from benchmarks.simulation.trace import NO_GROUP, PromptMaker, Trace, request_of
from splitserve.engine_core.errors import ConfigError


def draw(**values: object) -> Trace:
    return make_trace(make_settings({key: str(value) for key, value in values.items()}).workload)


def test_poisson_arrivals_have_the_rate_and_its_spread() -> None:
    gaps = np.diff(draw(requests=20000, rate=8).arrival_s)
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 8, rel=0.05)


def test_bursts_keep_the_mean_rate_and_rest_in_between() -> None:
    times = draw(requests=20000, rate=8, arrivals="bursts", burst_on_s=5, burst_off_s=20).arrival_s
    assert len(times) / times[-1] == pytest.approx(8, rel=0.05)
    assert (times % 25 <= 5).all()
    assert (np.diff(times) >= 0).all()


def test_lengths_have_the_median_and_a_long_tail() -> None:
    lengths = draw(requests=20000, prompt_tokens=300, prompt_sigma=1, max_prompt_tokens=5000).prompt_tokens
    assert np.median(lengths) == pytest.approx(300, rel=0.05)
    assert np.quantile(lengths, 0.99) > 2000
    assert lengths.max() <= 5000
    assert set(draw(requests=50, prompt_tokens=300).prompt_tokens.tolist()) == {300}


def test_changing_one_property_leaves_the_others() -> None:
    one, other = draw(output_sigma=1.0), draw(output_sigma=0.5)
    assert np.array_equal(one.arrival_s, other.arrival_s)
    assert not np.array_equal(one.output_tokens, other.output_tokens)


def test_shares_of_tenants_and_priorities() -> None:
    trace = draw(requests=20000, tenants=4, tenant_skew=1.0, urgent_share=0.25)
    counts = np.bincount(trace.tenant) / 20000
    assert counts == pytest.approx(np.array([12, 6, 4, 3]) / 25, abs=0.02)
    assert (trace.priority == 0).mean() == pytest.approx(0.25, abs=0.02)


def test_prompts_share_their_groups_prefix_and_nothing_else() -> None:
    trace = draw(requests=30, prefix_groups=2, prefix_tokens=48, prompt_tokens=20)
    maker = PromptMaker(trace, seed=0)
    prompts = [maker.prompt(request) for request in range(30)]
    for request, prompt in enumerate(prompts):
        assert len(prompt) == 4 * 68
        assert request_of(prompt + b"\0\0\0\0", 68) == request
        assert np.frombuffer(prompt, "<i4").max() < maker.vocab_size
    prefixes = {
        (int(group), prompt[: 4 * 48]) for group, prompt in zip(trace.prefix_group, prompts, strict=True)
    }
    assert len(prefixes) == 2 == len({prefix for _, prefix in prefixes})
    assert len({prompt[: 4 * 49] for prompt in prompts}) == 30


def test_a_prompt_of_one_token_is_unique_too() -> None:
    maker = PromptMaker(draw(requests=5, prompt_tokens=1), seed=0)
    assert [request_of(maker.prompt(i), 1) for i in range(5)] == [0, 1, 2, 3, 4]


JSONL = """
{"arrival_s": 12.5, "prompt_tokens": 100, "output_tokens": 20, "tenant": "b", "priority": -1}
{"arrival_s":10, "prompt_tokens":70, "output_tokens":5, "prefix_group": "c", "prefix_tokens":64, "tenant":"a"}
"""
CSV = """prompt_tokens,arrival_s,output_tokens,tenant,priority,prefix_group,prefix_tokens
100,12.5,20,b,-1,,
70,10,5,a,,c,64
"""


@pytest.mark.parametrize(("name", "text"), [("trace.jsonl", JSONL), ("trace.csv", CSV)])
def test_both_formats_read_the_same(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    trace = read_trace(path)
    assert trace.arrival_s.tolist() == [0.0, 2.5]
    assert trace.prompt_tokens.tolist() == [70, 100]
    assert trace.output_tokens.tolist() == [5, 20]
    assert trace.prefix_group.tolist() == [0, NO_GROUP]
    assert trace.prefix_tokens.tolist() == [64, 0]
    assert trace.tenant.tolist() == [0, 1]
    assert trace.priority.tolist() == [0, -1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"arrival_s": 1, "prompt_tokens": 0, "output_tokens": 5}', "prompt_tokens"),
        ('{"arrival_s": -1, "prompt_tokens": 1, "output_tokens": 5}', "arrival_s"),
        ('{"arrival_s": 1, "prompt_tokens": 1}', "output_tokens"),
        ('{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 5, "user": "x"}', "user"),
        ('{"arrival_s": 1, "prompt_tokens": 9, "output_tokens": 5, "prefix_tokens": 3}', "prefix_group"),
        (
            '{"arrival_s":1,"prompt_tokens": 9, "output_tokens": 5, "prefix_group": "g", "prefix_tokens": 9}',
            "below prompt_tokens",
        ),
        ("not json", "line 2"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}\n' + line + "\n")
    with pytest.raises(ConfigError, match=message) as raised:
        read_trace(path)
    assert "line 2" in str(raised.value)


@pytest.mark.parametrize(
    "text", ["arrival_s,prompt_tokens,output_tokens\n1,2,3,4\n", "arrival_s,prompt\n1,2\n"]
)
def test_a_csv_file_with_other_columns_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match="line 2"):
        read_trace(path)


def test_files_that_hold_nothing_or_do_not_exist_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="no requests"):
        read_trace(tmp_path / "empty.jsonl")
    with pytest.raises(ConfigError, match=r"missing\.jsonl"):
        read_trace(tmp_path / "missing.jsonl")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rate", "0"),
        ("rate", "fast"),
        ("requests", "0"),
        ("arrivals", "never"),
        ("depth", "3"),
        ("long_share", "1.5"),
        ("num_blocks", "many"),
        ("step_us", "-1"),
        ("speed", "1"),
        ("tenant_weights", "{"),
    ],
)
def test_bad_settings_are_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(ConfigError):
        make_settings({key: value})


def test_no_two_settings_have_the_same_name() -> None:
    groups = make_settings({})
    assert sum(len(group.__struct_fields__) for group in groups) == len(KEYS | {MEASURED})


def test_the_engine_is_told_what_a_move_takes() -> None:
    assert make_settings({"move_block_us": "2.5"}).engine.move_block_ns == 2500
    with pytest.raises(ConfigError, match="no setting 'move_block_ns'"):
        make_settings({"move_block_ns": "1"})


def test_engine_settings_reach_the_engine() -> None:
    settings = make_settings(
        {"max_prefill_tokens": "256", "policy": "priority", "enable_prefix_caching": "false"}
    )
    assert settings.engine.max_prefill_tokens == 256
    assert settings.engine.policy == "priority"
    assert not settings.engine.enable_prefix_caching
