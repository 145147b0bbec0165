"""Tokens beside a vocabulary are added to it at a cost that grows with their number."""

from __future__ import annotations

from splitserve.engine_core.checkpoint.tokenizer.beside import Beside, with_tokens


class _Counted(int):
    """An id that counts how often it is compared."""

    num_compared = 0

    def __gt__(self, other: int) -> bool:
        _Counted.num_compared += 1
        return int(self) > int(other)


def test_special_tokens_get_the_next_ids_without_a_search_each() -> None:
    vocab = {f"word {i}": _Counted(i) for i in range(100)}
    special = [f"<{i}>" for i in range(200)]
    added, ids = with_tokens(vocab, {}, Beside("vocab.txt").with_special(special))
    assert [token["id"] for token in added] == [ids[text] for text in special] == list(range(100, 300))
    assert 0 < _Counted.num_compared <= len(vocab)
