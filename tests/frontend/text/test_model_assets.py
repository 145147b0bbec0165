"""What is read of a checkpoint beside its tokenizer, and what is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from splitserve.engine_core.checkpoint.config.sampling_defaults import (
    SamplingDefaults,
    load_sampling_defaults,
)
from splitserve.engine_core.checkpoint.source import DEMO_MODEL
from splitserve.engine_core.errors import ModelLoadError
from splitserve.frontend.text.model_assets import load_model_assets
from tests.frontend.checkpoints import write_checkpoint
from tests.frontend.engines.messages import MODEL


def test_assets_join_checkpoint_and_engine(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "here")
    for info, where in ((msgspec.structs.replace(MODEL, path=str(directory)), ""), (MODEL, str(directory))):
        assets = load_model_assets(info, where)
        assert assets.chat_template is not None
        assert (assets.eos_token_ids, assets.max_model_len, assets.vocab_size) == ((2,), 512, 387)
        assert assets.sampling_defaults == SamplingDefaults(temperature=0.7)


def test_only_known_sampling_keys_are_read(tmp_path: Path) -> None:
    config = {
        "temperature": 0,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "max_new_tokens": 99,
        "do_sample": True,
        "eos_token_id": [1, 2],
        "transformers_version": "5",
    }
    directory = write_checkpoint(tmp_path, generation_config=config)
    assert load_sampling_defaults(directory) == SamplingDefaults(0.0, 0.9, 20, 0.05, 1.1, 99)


@pytest.mark.parametrize(
    ("config", "temperature"),
    [
        ({"do_sample": False}, 0.0),
        ({"do_sample": False, "temperature": 0.7}, 0.0),
        ({"do_sample": True, "temperature": 0.7}, 0.7),
        ({"do_sample": None, "temperature": 0.7}, 0.7),
        ({"do_sample": True}, None),
    ],
)
def test_a_checkpoint_that_does_not_sample_is_greedy_by_default(
    tmp_path: Path, config: dict[str, object], temperature: float | None
) -> None:
    directory = write_checkpoint(tmp_path, generation_config=config)
    assert load_sampling_defaults(directory) == SamplingDefaults(temperature=temperature)


def test_the_demo_model_is_greedy_by_default() -> None:
    assert load_sampling_defaults(DEMO_MODEL).temperature == 0


def test_a_checkpoint_may_have_no_generation_config(tmp_path: Path) -> None:
    assert load_sampling_defaults(tmp_path) == SamplingDefaults()


@pytest.mark.parametrize(
    "config",
    [{"temperature": "hot"}, {"top_p": 1.5}, {"top_k": 0.5}, {"max_new_tokens": -1}, {"do_sample": 0}],
)
def test_a_wrong_default_is_named_at_load(tmp_path: Path, config: dict[str, object]) -> None:
    directory = write_checkpoint(tmp_path, generation_config=config)
    with pytest.raises(ModelLoadError, match="generation_config"):
        load_sampling_defaults(directory)


@pytest.mark.parametrize("text", ["[]", "{", "\x00"])
def test_a_damaged_generation_config_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ModelLoadError, match="generation_config"):
        load_sampling_defaults(tmp_path)
