"""Whether a text gets a space in front, where tokenizer_config.json and tokenizer.json do not agree on it.

transformers lets `add_prefix_space` go before tokenizer.json for the tokenizer classes that build their own
pre-tokenizer, and ignores it for all others. The same is done here, for the classes of the models we serve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

_BYTE_LEVEL_CLASSES = {
    "CodeGenTokenizer",
    "CohereTokenizer",
    "GPT2Tokenizer",
    "GPTNeoXTokenizer",
    "Qwen2Tokenizer",
    "RobertaTokenizer",
    "WhisperTokenizer",
}
_PIECE_CLASSES = {"LlamaTokenizer"}
_MARK = "▁"

_Json = dict[str, object]


class _Sections(msgspec.Struct, frozen=True):
    normalizer: _Json | None = None
    pre_tokenizer: _Json | None = None


def with_prefix_space(description: bytes, config: Mapping[str, object]) -> bytes:
    """Return tokenizer.json as transformers would read it.

    Args:
        description: tokenizer.json; what is no such thing is returned as it is.
        config: tokenizer_config.json.
    """
    wanted, name = config.get("add_prefix_space"), str(config.get("tokenizer_class")).removesuffix("Fast")
    if not isinstance(wanted, bool) or name not in _BYTE_LEVEL_CLASSES | _PIECE_CLASSES:
        return description
    try:
        sections = msgspec.json.decode(description, type=_Sections)
        make = _byte_level if name in _BYTE_LEVEL_CLASSES else _pieces
        changed = make(sections, wanted, is_legacy=config.get("legacy") is True)
        if not changed:
            return description
        # The vocabulary, which is nearly all of it, is not looked at.
        whole = msgspec.json.decode(description, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return description
    return msgspec.json.encode({**whole, **changed})


def _byte_level(sections: _Sections, wanted: bool, *, is_legacy: bool) -> _Json:
    steps = [step for step in _steps(sections.pre_tokenizer) if step.get("type") == "ByteLevel"]
    if all(step.get("add_prefix_space", True) is wanted for step in steps):
        return {}
    for step in steps:
        step["add_prefix_space"] = wanted
    return {"pre_tokenizer": sections.pre_tokenizer}


def _pieces(sections: _Sections, wanted: bool, *, is_legacy: bool) -> _Json:
    steps = [*_steps(sections.normalizer), *_steps(sections.pre_tokenizer)]
    kinds = {step.get("type") for step in steps}
    if not kinds & {"Metaspace", "Prepend"} and not any(step.get("content") == _MARK for step in steps):
        return {}
    adds = "Prepend" in kinds or any(
        step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never" for step in steps
    )
    if adds is wanted:
        return {}
    scheme = ("always" if is_legacy else "first") if wanted else "never"
    strip: list[_Json] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    decoders: list[_Json] = [
        {"type": "Replace", "pattern": {"String": _MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *(strip if wanted else []),
    ]
    return {
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": _MARK,
            "prepend_scheme": scheme,
            "split": False,
        },
        "decoder": {"type": "Sequence", "decoders": decoders},
    }


def _steps(section: object) -> Iterator[_Json]:
    """Go through a section and those inside it."""
    if isinstance(section, dict):
        yield section
        for name in ("normalizers", "pretokenizers"):
            children = section.get(name)
            for child in children if isinstance(children, list) else []:
                yield from _steps(child)
