"""Which merges a SentencePiece vocabulary implies, as byte-pair encoding needs them in a list."""

from __future__ import annotations

from collections.abc import Sequence

from splitserve.engine_core.errors import ModelLoadError

# As many as a tokenizer.json may have.
MAX_MERGES = 2**21
_MAX_PIECES = 256


def implied_merges(
    tokens: Sequence[str], ranks: Sequence[float], mergeable: Sequence[bool], where: str
) -> list[list[str]]:
    """Return the pairs of tokens that make a token, best first.

    SentencePiece joins the neighbours whose union has the best score; a list of all pairs in the order of the
    scores of their unions does the same. Pairs of one union are in the order of their parts.

    Args:
        tokens: by id.
        ranks: of the tokens, the best the lowest.
        mergeable: which of them are made by merging, unlike control tokens and bytes.
        where: the vocabulary's file, for errors.

    Raises:
        ModelLoadError: there are more than MAX_MERGES.
    """
    ids = {token: token_id for token_id, token in enumerate(tokens) if mergeable[token_id]}
    found: list[tuple[float, int, int, int]] = []
    for token, token_id in ids.items():
        for cut in range(1, min(len(token), _MAX_PIECES)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                found.append((ranks[token_id], token_id, left, right))
        if len(found) > MAX_MERGES:
            raise ModelLoadError(f"{where}: its tokens can be made by more than {MAX_MERGES} merges")
    found.sort()
    return [[tokens[left], tokens[right]] for _rank, _token, left, right in found]
