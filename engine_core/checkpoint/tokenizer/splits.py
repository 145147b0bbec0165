"""How the text of a byte-level BPE tokenizer is cut into words, by names of GGUF's `tokenizer.ggml.pre`.

The patterns are those of the models' own tokenizer.json.
"""

from __future__ import annotations

from typing import NamedTuple


class Split(NamedTuple):
    """A way to cut texts.

    Attributes:
        pattern: of a word; "" for GPT-2's, which the tokenizers library has.
        takes_whole_words: a word that is a token is not put together by merges.
        is_normalized: texts are brought into Unicode's form NFC.
        parts_digits: every digit is a word, before the pattern is applied.
        begins: the BOS token is added unless the file says otherwise.
    """

    pattern: str
    takes_whole_words: bool = False
    is_normalized: bool = False
    begins: bool = False
    parts_digits: bool = False


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

GPT2 = Split("")
LLAMA3 = Split(
    rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_MARKS}{_TAIL}", takes_whole_words=True, begins=True
)
QWEN2 = Split(rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_MARKS}{_TAIL}", is_normalized=True)
_TEKKEN = Split(rf"{_LOWER}|{_UPPER}|\p{{N}}|{_SLASHED}{_TAIL}", takes_whole_words=True, begins=True)
KIMI = Split(
    r"[\p{Han}]+"
    rf"|{_LOWER}{_CONTRACTIONS}?|{_UPPER}{_CONTRACTIONS}?".replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]")
    + rf"|\p{{N}}{{1,3}}|{_MARKS}{_TAIL}"
)
_GPT4O = Split(
    rf"{_LOWER}{_CONTRACTIONS}?|{_UPPER}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_SLASHED}{_TAIL}",
    takes_whole_words=True,
)

SPLITS = {
    "gpt-2": GPT2,
    "smollm": Split("", parts_digits=True),
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "smaug-bpe": LLAMA3,
    "dbrx": LLAMA3._replace(takes_whole_words=False, begins=False),
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "tekken": _TEKKEN,
    "gpt-4o": _GPT4O,
}
