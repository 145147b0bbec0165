"""GET /tokenizer_info: the tokenizer's configuration as the checkpoint gives it, if the operator shows it."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from splitserve.frontend.openai.context import ApiContext
from splitserve.frontend.openai.models import find_model
from splitserve.frontend.text.model_assets import ModelAssets

# Where files lie and who may fetch them is the operator's business.
_HIDDEN: Final[frozenset[str]] = frozenset(
    ["name_or_path", "_name_or_path", "token", "use_auth_token", "special_tokens_map_file", "cache_dir"]
)


class TokenizerInfo(msgspec.Struct, frozen=True):
    """The keys of tokenizer_config.json; these two are always there.

    Attributes:
        tokenizer_class: what transformers would load.
        chat_template: the template in use; a list of {"name", "template"} if there are several.
    """

    tokenizer_class: str | None
    chat_template: str | list[dict[str, str]] | None


async def tokenizer_info(context: ApiContext, request: Request) -> Response:
    """Answer GET /tokenizer_info for the model that the query parameter `model` names.

    Raises:
        InvalidRequestError: status 404, no engine serves the name.
        EngineUnavailableError: no engine is ready.
    """
    model = await find_model(context, request.query_params.get("model"))
    return Response(msgspec.json.encode(describe_tokenizer(model.assets)), media_type="application/json")


def describe_tokenizer(assets: ModelAssets) -> dict[str, object]:
    """Return what the checkpoint says of its tokenizer, without paths and credentials."""
    config = assets.tokenizer.config
    shown = {key: value for key, value in config.items() if key not in _HIDDEN and not _is_path(key, value)}
    return shown | {
        "tokenizer_class": config.get("tokenizer_class"),
        "chat_template": _templates(assets.chat_template.sources if assets.chat_template else {}),
    }


def _is_path(key: str, value: object) -> bool:
    return key.endswith("_file") or (isinstance(value, str) and value.startswith("/"))


def _templates(sources: dict[str, str]) -> str | list[dict[str, str]] | None:
    if not sources:
        return None
    if list(sources) == ["default"]:
        return sources["default"]
    return [{"name": name, "template": text} for name, text in sources.items()]
