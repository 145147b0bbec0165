"""Layers are grouped so that a longest sequence takes the least memory in blocks of one size."""

from __future__ import annotations

from collections import Counter

import pytest

from splitserve.worker.kv_cache.layer_groups import MAX_WINDOW_GROUPS, LayerGroups, group_layers


def pattern(num_layers: int, every: int, window: int) -> list[int]:
    return [0 if (i + 1) % every == 0 else window for i in range(num_layers)]


@pytest.mark.parametrize(
    ("windows", "max_model_len", "num_groups"),
    [
        # Gemma 3 1B: 4 of 26; 4B: 5 of 34; 27B: 10 of 62.
        (pattern(26, 6, 512), 32768, 6),
        (pattern(34, 6, 1024), 131072, 6),
        (pattern(62, 6, 1024), 131072, 6),
        # Gemma 2 and gpt-oss: every other layer.
        (pattern(26, 2, 4096), 8192, 1),
        (pattern(24, 2, 128), 131072, 1),
        # A single layer that sees all: no more tables than there may be.
        (pattern(32, 32, 128), 131072, MAX_WINDOW_GROUPS),
        # A single layer with a window.
        ([0] * 31 + [128], 131072, 0),
        ([0, 0, 0, 128], 131072, 1),
    ],
)
def test_the_grouping(windows: list[int], max_model_len: int, num_groups: int) -> None:
    groups = group_layers(windows, max_model_len)
    assert groups == LayerGroups(num_groups, max(windows) if num_groups else 0)


@pytest.mark.parametrize("windows", [[], [0] * 8, [64] * 8, [64, 32]])
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


def test_a_stage_places_its_own_layers() -> None:
    windows = pattern(12, 6, 1024)
    groups = group_layers(windows, 131072)
    for stage in (windows[:5], windows[5:]):
        places = groups.place(stage)
        assert len(set(places)) == len(stage)
        assert max(place for place, _ in places) + 1 <= 2
