"""Whether the regular expressions of a tokenizer.json are known to take time in proportion to the text.

Others may backtrack: the library gives up on a match after ten million steps, about 0.1 s, but a short text
can hold hundreds of matches that stay below that. So texts are encoded on the event loop only with patterns
that we know; any other tokenizer costs each short text a change of threads.
"""

from __future__ import annotations

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_KNOWN = {
    # Qwen2 and Qwen3; Llama 3 and cl100k; GPT-2 as some files spell it out.
    _WORDS + r"\p{N}" + _REST,
    _WORDS + r"\p{N}{1,3}" + _REST,
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    # Digits one by one or in threes, words and spaces.
    r"\d",
    r"\d+",
    r"\p{N}{1,3}",
    r"\s+",
    # What takes spaces off, as made of a SentencePiece model.
    r" {2,}",
    r"\A | \z",
    r"(?<!▁)▁+\z",
}


def has_unknown_pattern(sections: object) -> bool:
    """Look through sections of tokenizer.json, such as normalizer and pre_tokenizer."""
    if isinstance(sections, dict):
        pattern = sections.get("Regex")
        if isinstance(pattern, str) and pattern not in _KNOWN:
            return True
        return any(map(has_unknown_pattern, sections.values()))
    return isinstance(sections, list) and any(map(has_unknown_pattern, sections))
