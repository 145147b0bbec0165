"""A text that cannot fit is refused before it is encoded, by its place in the request."""

from __future__ import annotations

import pytest

from splitserve.engine_core.checkpoint.config.sampling_defaults import SamplingDefaults
from splitserve.engine_core.errors import ContextLengthError
from splitserve.frontend.text.model_assets import ModelAssets
from splitserve.frontend.text.prompts import PromptEncoder
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.frontend.text.conftest import TokenizerOf


async def no_turn() -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("param", "what"), [("prompt", "prompt"), ("prompt[1]", "prompt"), ("input[2]", "input")]
)
@pytest.mark.parametrize("text", ["x" * 161, "🙂" * 41], ids=["ascii", "wide"])
async def test_text_over_the_byte_cap_is_refused_before_encoding(
    tokenizer_of: TokenizerOf, monkeypatch: pytest.MonkeyPatch, text: str, param: str, what: str
) -> None:
    monkeypatch.setattr(Tokenizer, "encode", lambda *args, **kwargs: pytest.fail("was encoded"))
    assets = ModelAssets(tokenizer_of("byte_level"), None, SamplingDefaults(), (), 10, 300)
    encoder = PromptEncoder(assets, True, None, no_turn)
    with pytest.raises(ContextLengthError, match=f"10 tokens. However, your {what} of") as raised:
        await encoder.encode_text(text, param)
    assert raised.value.param == param
    with pytest.raises(ContextLengthError, match="10 tokens"):
        await encoder.encode_pair("a", text, param)
