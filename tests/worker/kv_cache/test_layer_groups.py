"""Layers are grouped so that a longest sequence takes the least memory in blocks of one size."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from splitserve.worker.kv_cache.layer_groups import MAX_WINDOW_GROUPS, LayerGroups, group_layers


def pattern(num_layers: int, every: int, window: int) -> list[int]:
    return [0 if (i + 1) % every == 0 else window for i in range(num_layers)]


@pytest.mark.parametrize(
    ("windows", "max_model_len", "group_windows"),
    [
        # Gemma 3 1B: 4 of 26; 4B: 5 of 34; 27B: 10 of 62.
        (pattern(26, 6, 512), 32768, (512,) * 6),
        (pattern(34, 6, 1024), 131072, (1024,) * 6),
        (pattern(62, 6, 1024), 131072, (1024,) * 6),
        # Gemma 2 and gpt-oss: every other layer.
        (pattern(26, 2, 4096), 8192, (4096,)),
        (pattern(24, 2, 128), 131072, (128,)),
        # A single layer that sees all shares its group with three others: no more tables than there may be.
        (pattern(32, 32, 128), 131072, (128,) * 7),
        (pattern(48, 48, 128), 131072, (128,) * 7),
        # A single layer with a window.
        ([0] * 31 + [128], 131072, ()),
        ([0, 0, 0, 128], 131072, (128,)),
        # Three widths, a group or more for each.
        ([0, 512, 512, 4096, 512, 512] * 4, 131072, (4096, 512, 512, 512, 512)),
        # A layer or two of another width share a group with those that see more.
        ([0, 0, 0, 4096, 512, 512, 512, 512], 131072, (4096, 512)),
        # No layer sees all.
        ([4096, 512] * 5, 131072, (512,)),
        ([4096, 512] * 5, 600, ()),
    ],
)
def test_the_grouping(windows: list[int], max_model_len: int, group_windows: tuple[int, ...]) -> None:
    groups = group_layers(windows, max_model_len)
    assert groups == LayerGroups(group_windows)
    assert groups.num_window_groups <= MAX_WINDOW_GROUPS


@pytest.mark.parametrize("windows", [[], [0] * 8, [64] * 8, [64, 60]])
def test_layers_that_are_alike_stay_together(windows: list[int]) -> None:
    groups = group_layers(windows, 4096)
    assert groups == LayerGroups()
    assert groups.place(windows) == [(i, 0) for i in range(len(windows))]


def test_sequences_no_longer_than_the_window_need_no_groups() -> None:
    assert group_layers(pattern(26, 6, 4096), 4096) == LayerGroups()


def test_each_layer_has_a_place_of_its_own() -> None:
    windows = pattern(34, 6, 1024)
    places = group_layers(windows, 131072).place(windows)
    assert len(set(places)) == len(windows)
    assert {group == 0 for _, group in places} == {True, False}
    assert all((group == 0) == (window == 0) for (_, group), window in zip(places, windows, strict=True))
    assert max(Counter(group for _, group in places).values()) == 5
    # A block's places are filled from the first, in the order of layers.
    for group in range(7):
        assert [place for place, other in places if other == group] == sorted(
            place for place, other in places if other == group
        )


@pytest.mark.parametrize("windows", [pattern(34, 6, 1024), [0, 512, 512, 4096, 512, 512] * 4, [64, 8, 8] * 3])
@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_a_stage_keeps_its_layers_in_groups_that_see_as_much(windows: list[int], num_stages: int) -> None:
    groups = group_layers(windows, 131072)
    kept = [0, *groups.windows] if 0 in windows else [max(windows), *groups.windows]
    bounds = [len(windows) * i // num_stages for i in range(num_stages + 1)]
    most = -(-len(windows) // len(kept))
    for begin, end in pairwise(bounds):
        stage = windows[begin:end]
        places = groups.place(stage)
        assert len(set(places)) == len(stage)
        for (place, group), window in zip(places, stage, strict=True):
            assert not kept[group] or 0 < window <= kept[group]
            assert place < most
