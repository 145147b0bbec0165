"""Makes the grammar of a request, or checks the one it brings: in a process, each only once."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import msgspec

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.text.grammar.bounded_thoughts import FREE
from splitserve.frontend.text.grammar.context import GrammarContext
from splitserve.frontend.text.grammar.grammar_process import CheckLimits, GrammarProcess, Query, Vocabulary
from splitserve.frontend.text.grammar.refusal import RefusalError
from splitserve.frontend.text.grammar.thinking_budget import FIELD as BUDGET_FIELD
from splitserve.frontend.text.grammar.thinking_budget import budget_of
from splitserve.frontend.text.limited.process import ProcessEndedError, ProcessTimeoutError
from splitserve.frontend.text.limited.turns import ProcessQueue, Turns
from splitserve.frontend.text.model_assets import ModelAssets
from splitserve.frontend.text.tokenizer import Tokenizer

MAX_QUERY_BYTES: Final = 2**20
MAX_CACHED: Final = 4096
MAX_CACHED_BYTES: Final = 32 * 2**20
_ENTRY_BYTES = 512


class GrammarChecker:
    """The grammars of one frontend process; belongs to its event loop."""

    def __init__(self, limits: CheckLimits | None = None) -> None:
        """Start nothing yet: the first grammar starts the process."""
        self._queue = ProcessQueue(partial(GrammarProcess, limits or CheckLimits()), "grammar")
        self._verdicts = Verdicts(MAX_CACHED, MAX_CACHED_BYTES)
        self._vocabularies: WeakKeyDictionary[Tokenizer, bytes] = WeakKeyDictionary()

    @property
    def pid(self) -> int:
        """Id of the process, 0 if there is none now."""
        return self._queue.pid

    async def resolve(
        self, sampling: SamplingParams, context: GrammarContext, assets: ModelAssets
    ) -> SamplingParams:
        """Return parameters whose grammar is checked and says all that the request and its context say.

        Calls that are optional are left free where outputs cannot be held to them.

        Raises:
            InvalidRequestError: the grammar is wrong, not served, or takes too much to check; names the field
                and, of a JSON schema, the place.
            OverloadedError: too many wait to be checked.
            EngineUnavailableError: there can be no process that checks.
        """
        sampling = _with_held_budget(sampling, context)
        if context.calls is None and not has_grammar(sampling):
            return sampling
        is_optional = context.calls is not None and context.calls.is_optional
        field = context.field or _field(sampling)
        if not assets.eos_token_ids:
            if is_optional:
                return await self.resolve(sampling, context._replace(calls=None), assets)
            text = f"{field}: this model has no EOS token, which is what ends an output with a grammar"
            raise InvalidRequestError(text, field, "unsupported_parameter")
        try:
            made = await self._make(_encode(_query(sampling, context, assets)), self._vocabulary(assets))
        except RefusalError as error:
            if is_optional:
                return await self.resolve(sampling, context._replace(calls=None), assets)
            name = error.field or field
            path = f"{name}.{error.path}" if error.path else name
            raise InvalidRequestError(f"{path}: {error}", name) from None
        return msgspec.structs.replace(
            sampling, structured_outputs=None, thinking_token_budget=None, grammar=made
        )

    def close(self) -> None:
        """End the process; safe to call twice."""
        self._queue.close()

    async def _make(self, query: bytes, vocabulary: bytes) -> str:
        key = hashlib.sha256(query + vocabulary).digest()
        known = self._verdicts.get(key)
        if known is None:
            known = await asyncio.wrap_future(self._queue.submit(partial(_run, query, vocabulary)))
            self._verdicts.add(key, known)
        if isinstance(known, str):
            return known
        raise RefusalError(str(known), known.path, known.field)

    def _vocabulary(self, assets: ModelAssets) -> bytes:
        tokenizer = assets.tokenizer
        known = self._vocabularies.get(tokenizer)
        if known is None:
            special = special_to_llguidance(tokenizer)
            vocabulary = Vocabulary(special, assets.eos_token_ids[0], assets.vocab_size)
            known = self._vocabularies[tokenizer] = msgspec.json.encode(vocabulary)
        return known


def has_grammar(sampling: SamplingParams) -> bool:
    """Tell whether resolve() would make or check a grammar without any calls."""
    named = (sampling.grammar, sampling.structured_outputs, sampling.thinking_token_budget)
    return any(each is not None for each in named)


def _with_held_budget(sampling: SamplingParams, context: GrammarContext) -> SamplingParams:
    """Return the parameters without a budget that is kept anyway: the prompt has closed the reasoning."""
    if sampling.thinking_token_budget is None or context.reasoning is not None:
        return sampling
    return msgspec.structs.replace(sampling, thinking_token_budget=None)


def _field(sampling: SamplingParams) -> str:
    """Return the field that a grammar comes from, for errors."""
    if sampling.structured_outputs is not None:
        return f"structured_outputs.{sampling.structured_outputs.kind}"
    return BUDGET_FIELD if sampling.grammar is None else "grammar"


def _query(sampling: SamplingParams, context: GrammarContext, assets: ModelAssets) -> Query:
    budget, num_tokens = None, sampling.thinking_token_budget
    if num_tokens is not None:
        budget = budget_of(num_tokens, context.reasoning, assets.tokenizer, assets.eos_token_ids)
    if sampling.grammar is not None and budget is not None:
        text = f"{BUDGET_FIELD} excludes a grammar of the request's own"
        raise InvalidRequestError(text, BUDGET_FIELD, "unsupported_parameter")
    structured = sampling.structured_outputs
    if structured is None and context.calls is None and budget is None:
        return Query(kind="", value=sampling.grammar)
    is_free = structured is None and context.calls is None
    return Query(
        kind=structured.kind if structured is not None else FREE if is_free else "",
        value=None if structured is None else getattr(structured, structured.kind),
        whitespace_pattern=None if structured is None else structured.whitespace_pattern,
        reasoning=context.reasoning,
        calls=context.calls,
        budget=budget,
    )


def special_to_llguidance(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the tokens that are no text to llguidance: special ones, and added ones in angle brackets."""
    added = tokenizer.added_tokens.items()
    named = {text: token_id for text, token_id in added if text.startswith("<") and text.endswith(">")}
    return named | tokenizer.special_tokens


class Verdicts:
    """What is known of grammars by the hashes of what was asked, those asked for last; bounded both ways."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        """Know nothing yet."""
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._entries: OrderedDict[bytes, str | RefusalError] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> str | RefusalError | None:
        """Return a grammar, or why it is refused; None if it is not known."""
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def add(self, key: bytes, verdict: str | RefusalError) -> None:
        """Remember one, and forget what was not asked for longest if that is too much."""
        if key in self._entries:
            return
        self._entries[key] = verdict
        self.num_bytes += _size(verdict)
        while len(self._entries) > self._max_entries or self.num_bytes > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self.num_bytes -= _size(oldest)


def _size(verdict: str | RefusalError) -> int:
    # A character of a str may take four bytes.
    return _ENTRY_BYTES + 4 * len(verdict if isinstance(verdict, str) else str(verdict))


def _run(query: bytes, vocabulary: bytes, turns: Turns[GrammarProcess]) -> str | RefusalError:
    try:
        return turns.run(lambda process: process.make(query, vocabulary))
    except RefusalError as error:
        return error.with_traceback(None)
    except ProcessTimeoutError as error:
        # Not remembered: the machine may have been busy.
        raise RefusalError(f"checking it {error}") from None
    except ProcessEndedError as error:
        raise RefusalError(f"it crashed the process that checks it twice: {error}") from None


def _encode(query: Query) -> bytes:
    try:
        encoded = msgspec.json.encode(query)
    except RecursionError:
        raise RefusalError("it is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise RefusalError(f"it must be JSON values: {error}") from None
    if len(encoded) > MAX_QUERY_BYTES:
        raise RefusalError(f"it must have at most {MAX_QUERY_BYTES} bytes as JSON, got {len(encoded)}")
    return encoded
