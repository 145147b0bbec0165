"""tokenizer.json and tokenizer_config.json from the vocabulary in a GGUF file's metadata."""

from __future__ import annotations

from typing import NamedTuple

from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.gguf.header import Texts
from splitserve.engine_core.checkpoint.gguf.merges import implied_merges
from splitserve.engine_core.checkpoint.gguf.splits import SPLITS, Split

_KEY = "tokenizer.ggml."
_MAX_TOKENS = 2**21
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_SPACE = "\u2581"
_GEMMA = ("gemma", "gemma2", "gemma3")
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
# What ends a turn in chats of the supported families, where a file names only one token.
_ENDS = {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<|endoftext|>"}


class Vocabulary(NamedTuple):
    """What a file says of its tokens.

    Attributes:
        fields: all metadata.
        kind: "gpt2" for byte-level BPE, "llama" for SentencePiece.
        tokens: by id.
        types: of the tokens, as GGUF numbers them.
    """

    fields: Fields
    kind: str
    tokens: list[str]
    types: list[int]

    def token(self, role: str) -> str | None:
        """Return the token of a role such as "bos", None if there is none."""
        token_id = self.fields.integer(f"{_KEY}{role}_token_id", 0, 2**32 - 1, 2**32 - 1)
        return self.tokens[token_id] if token_id < len(self.tokens) else None

    def adds(self, role: str) -> bool:
        """Whether the token of a role is added to every text; SentencePiece begins texts by default."""
        splits = SPLITS.get(self.fields.text(f"{_KEY}pre", "default"))
        begins = self.kind == "llama" or (splits is not None and splits.begins)
        return self.fields.boolean(f"{_KEY}add_{role}_token", role == "bos" and begins)


def read_vocabulary(fields: Fields) -> Vocabulary:
    """Read the tokens.

    Raises:
        ModelLoadError: they are missing, or of a kind that is not supported.
    """
    kind = fields.text(f"{_KEY}model", "")
    if kind not in ("gpt2", "llama"):
        raise fields.error(
            f"{_KEY}model",
            f"must be gpt2 or llama, got {kind!r:.100}: give frontends a tokenizer.json by --assets-dir",
        )
    tokens = _texts(fields, "tokens")
    if not 1 <= len(tokens) <= _MAX_TOKENS:
        raise fields.error(f"{_KEY}tokens", f"must hold 1 to {_MAX_TOKENS} texts, got {len(tokens)}")
    if len(set(tokens)) != len(tokens):
        raise fields.error(f"{_KEY}tokens", "holds the same text twice")
    types = fields.raw_list(f"{_KEY}token_type")
    if types is None:
        types = [_NORMAL] * len(tokens)
    if len(types) != len(tokens) or not all(isinstance(kind, int) for kind in types):
        raise fields.error(f"{_KEY}token_type", f"must hold a number for each of {len(tokens)} tokens")
    return Vocabulary(fields, kind, tokens, [kind for kind in types if isinstance(kind, int)])


def end_ids(fields: Fields) -> list[int]:
    """Return the ids that end a sequence: those that are named, and control tokens that end turns."""
    named = [
        fields.integer(f"{_KEY}{name}_token_id", 0, 2**32 - 1, 2**32 - 1) for name in ("eos", "eot", "eom")
    ]
    found = {token_id for token_id in named if token_id != 2**32 - 1}
    if fields.has(f"{_KEY}tokens"):
        vocabulary = read_vocabulary(fields)
        pairs = zip(vocabulary.tokens, vocabulary.types, strict=True)
        found |= {i for i, (token, kind) in enumerate(pairs) if kind == _CONTROL and token in _ENDS}
    return sorted(found)


def make_tokenizer(vocabulary: Vocabulary) -> dict[str, object]:
    """Return tokenizer.json.

    Raises:
        ModelLoadError: the merges or scores are missing, or texts are split in a way that is not supported.
    """
    if vocabulary.kind == "llama" and _is_gemma(vocabulary):
        vocabulary = _respelled(vocabulary)
    parts = _byte_level(vocabulary) if vocabulary.kind == "gpt2" else _sentencepiece(vocabulary)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary),
        **parts,
        "post_processor": _post_processor(vocabulary, parts["post_processor"]),
    }


def make_tokenizer_config(vocabulary: Vocabulary) -> dict[str, object]:
    """Return tokenizer_config.json: tokens with a role, and the chat template."""
    config: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    config |= {f"{name}_token": token for name, role in _ROLES.items() if (token := vocabulary.token(role))}
    template = vocabulary.fields.text("tokenizer.chat_template", "")
    return {**config, "chat_template": template} if template else config


def _texts(fields: Fields, name: str) -> list[str]:
    value = fields.raw(f"{_KEY}{name}")
    if value is None:
        raise fields.error(f"{_KEY}{name}", "is missing")
    if not isinstance(value, Texts):
        raise fields.error(f"{_KEY}{name}", "must be a list of texts")
    return value.decode()


def _is_gemma(vocabulary: Vocabulary) -> bool:
    return vocabulary.fields.text("general.architecture", "") in _GEMMA


def _respelled(vocabulary: Vocabulary) -> Vocabulary:
    """Spell runs of spaces with the letter that they are looked up by, unlike Gemma's files."""
    tokens = [_SPACE * len(token) if token and not token.strip(" ") else token for token in vocabulary.tokens]
    return vocabulary._replace(tokens=tokens)


def _added_tokens(vocabulary: Vocabulary) -> list[dict[str, object]]:
    return [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == _CONTROL,
        }
        for token_id, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _byte_level(vocabulary: Vocabulary) -> dict[str, object]:
    fields = vocabulary.fields
    name = fields.text(f"{_KEY}pre", "default")
    split = SPLITS.get(name)
    if split is None:
        raise fields.error(
            f"{_KEY}pre",
            f"must be one of {', '.join(SPLITS)}, got {name!r:.100}: give frontends a tokenizer.json by "
            "--assets-dir",
        )
    merges = [merge.split(" ") for merge in _texts(fields, "merges")]
    known = set(vocabulary.tokens)
    if not all(len(pair) == 2 and "".join(pair) in known and known.issuperset(pair) for pair in merges):
        raise fields.error(f"{_KEY}merges", "must hold pairs of tokens that make a token")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": {"type": "NFC"} if split.is_normalized else None,
        "pre_tokenizer": _pre_tokenizer(split, byte_level),
        "post_processor": {**byte_level, "trim_offsets": False},
        "decoder": {**byte_level, "use_regex": True},
        "model": _bpe(vocabulary, merges, ignore_merges=split.takes_whole_words),
    }


def _pre_tokenizer(split: Split, byte_level: dict[str, object]) -> dict[str, object]:
    if split.parts_digits:
        digits = {"type": "Digits", "individual_digits": True}
        return {"type": "Sequence", "pretokenizers": [digits, {**byte_level, "use_regex": True}]}
    if not split.pattern:
        return {**byte_level, "use_regex": True}
    cut = {"type": "Split", "pattern": {"Regex": split.pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [cut, byte_level]}


def _sentencepiece(vocabulary: Vocabulary) -> dict[str, object]:
    fields = vocabulary.fields
    is_gemma = _is_gemma(vocabulary)
    scores = fields.raw_list(f"{_KEY}scores")
    if scores is None or len(scores) != len(vocabulary.tokens):
        raise fields.error(f"{_KEY}scores", f"must hold a number for each of {len(vocabulary.tokens)} tokens")
    # Gemma's merges come in the order of the tokens, whatever their scores.
    ranks = range(len(scores)) if is_gemma else [-score for score in scores if isinstance(score, float)]
    if len(ranks) != len(scores):
        raise fields.error(f"{_KEY}scores", "must hold numbers")
    mergeable = [kind in (_NORMAL, _USER_DEFINED) for kind in vocabulary.types]
    merges = implied_merges(vocabulary.tokens, ranks, mergeable)
    adds_space = fields.boolean(f"{_KEY}add_space_prefix", not is_gemma)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prepend = {"type": "Prepend", "prepend": _SPACE}
    decoders: list[dict[str, object]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if adds_space:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    model = _bpe(vocabulary, merges, ignore_merges=False)
    return {
        "normalizer": {"type": "Sequence", "normalizers": [prepend, spaces] if adds_space else [spaces]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {**model, "unk_token": vocabulary.token("unknown"), "fuse_unk": True, "byte_fallback": True},
    }


def _bpe(vocabulary: Vocabulary, merges: list[list[str]], *, ignore_merges: bool) -> dict[str, object]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": ignore_merges,
        "vocab": {token: token_id for token_id, token in enumerate(vocabulary.tokens)},
        "merges": merges,
    }


def _post_processor(vocabulary: Vocabulary, inner: object) -> object:
    """Return the processor that begins and ends texts as the file says, behind that of the kind."""
    added = [vocabulary.token(role) if vocabulary.adds(role) else None for role in ("bos", "eos")]
    if not any(added):
        return inner
    single = _around("A", 0, added)
    tokens = {
        token: {"id": token, "ids": [vocabulary.tokens.index(token)], "tokens": [token]}
        for token in added
        if token
    }
    template = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *_around("B", 1, added)],
        "special_tokens": tokens,
    }
    return template if inner is None else {"type": "Sequence", "processors": [inner, template]}


def _around(text: str, type_id: int, added: list[str | None]) -> list[dict[str, object]]:
    """Return a text of a template between the tokens that begin and end it."""
    begin, end = added
    parts = (("SpecialToken", begin), ("Sequence", text), ("SpecialToken", end))
    return [{kind: {"id": name, "type_id": type_id}} for kind, name in parts if name]
