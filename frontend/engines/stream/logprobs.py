"""Decodes an engine's logprobs when they are read: as objects they take far more memory than as columns."""

from __future__ import annotations

from collections.abc import Sequence

from splitserve.engine_core.errors import ProtocolError
from splitserve.engine_core.ipc.codec import unpack_float32, unpack_int32
from splitserve.engine_core.ipc.wire import TokenLogprobs
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.generation import TokenLogprob
from splitserve.frontend.engines.stream.lazy_list import LazyList


def read_token_logprob(entry: TokenLogprobs, asked_ids: tuple[int, ...] = ()) -> TokenLogprob:
    """Decode the logprobs of one token.

    Args:
        entry: as the engine sent it.
        asked_ids: the request's logprob_token_ids.

    Raises:
        ProtocolError: the columns do not match each other or the request.
    """
    token_ids, logprobs = unpack_int32(entry.token_ids).tolist(), unpack_float32(entry.logprobs).tolist()
    num_top = len(token_ids) - 1 - len(asked_ids)
    if num_top < 0 or len(token_ids) != len(logprobs) or token_ids[1 + num_top :] != list(asked_ids):
        raise ProtocolError(f"logprobs of tokens {token_ids[:200]} and {len(logprobs)} values")
    others = list(zip(token_ids[1:], logprobs[1:], strict=True))
    return TokenLogprob(token_ids[0], logprobs[0], entry.rank, others[:num_top], others[num_top:])


def read_prompt_logprobs(source: OpenSequence) -> Sequence[TokenLogprob | None]:
    """Take what has arrived: one entry per prompt token, None for the first, as nothing precedes it."""
    entries, source.prompt_logprobs = source.prompt_logprobs, []
    return LazyList(entries or [None] * (len(source.request.prompt_token_ids) // 4), _read_entry)


def _read_entry(entry: TokenLogprobs | None) -> TokenLogprob | None:
    return None if entry is None else read_token_logprob(entry)
