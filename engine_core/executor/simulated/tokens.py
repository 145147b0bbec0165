"""Which token does a simulated model sample? A pure function of the sequence so far, seed and options.

    state  = sum over positions i of (token_i + 1) * MULTIPLIER**i        modulo 2**64
    mixed  = mix(state XOR mix(seed))                                      mix is SplitMix64's finaliser
    token  = mixed mod vocab_size, moved up to the next id that is not EOS

Every earlier token and its position enter, so one wrong, missing or repeated token changes all later ones.
The seed counts as 0 when temperature is 0, as greedy sampling is not random. EOS comes only where the
options say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.sequence_sampling import SequenceSampling

MULTIPLIER = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1

HashColumn = npt.NDArray[np.uint64]


@dataclass(slots=True, frozen=True)
class TokenRule:
    """The simulated model's output.

    Attributes:
        vocab_size: ids 0..vocab_size-1.
        eos_token_ids: never sampled by chance.
        eos_after: index of the output token that is EOS; None for never.
        eos_probability: chance of EOS at every output token, 0..1.
        cycle_token_ids: when given, output token i is cycle_token_ids[i mod length] instead of the hash.
    """

    vocab_size: int = 32000
    eos_token_ids: tuple[int, ...] = (2,)
    eos_after: int | None = None
    eos_probability: float = 0.0
    cycle_token_ids: tuple[int, ...] = ()


def sequence_state(token_ids: Sequence[int] | npt.NDArray[np.int32], powers: HashColumn) -> np.uint64:
    """Return the state of a sequence, given MULTIPLIER's powers up to its length."""
    tokens = np.asarray(token_ids).astype(np.uint64) + np.uint64(1)
    return np.uint64((tokens * powers[: len(tokens)]).sum(dtype=np.uint64))


def make_powers(count: int) -> HashColumn:
    """Return MULTIPLIER**0 .. MULTIPLIER**(count-1) modulo 2**64."""
    factors = np.full(count, MULTIPLIER, np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)


def mix(values: HashColumn) -> HashColumn:
    """Spread every input bit over every output bit (SplitMix64's finaliser)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def seed_of(sampling: SequenceSampling) -> int:
    """Return the seed that counts: 0 for greedy requests."""
    return 0 if sampling.temperature == 0 or sampling.seed is None else sampling.seed


class TokenSampler:
    """Applies a TokenRule to whole columns."""

    def __init__(self, rule: TokenRule) -> None:
        self._rule = rule
        self._cycle = np.array(rule.cycle_token_ids, np.int32)
        eos = set(rule.eos_token_ids)
        assert len(eos) < rule.vocab_size, "some token must not be EOS"
        self._next_allowed = np.arange(rule.vocab_size, dtype=np.int32)
        for token_id in eos:
            self._next_allowed[token_id] = avoid(token_id, eos, rule.vocab_size)

    def sample(
        self,
        states: HashColumn,
        seed_mixes: HashColumn,
        output_indices: npt.NDArray[np.int64],
        eos_allowed: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.int32]:
        """Sample one token per row; all columns [n].

        Args:
            states: of the sequences so far.
            seed_mixes: mix(seed).
            output_indices: index of the token within the row's output.
            eos_allowed: whether EOS may come now (min_tokens reached, EOS not ignored).
        """
        rule = self._rule
        mixed = mix(states ^ seed_mixes)
        if len(self._cycle):
            tokens = self._cycle[output_indices % len(self._cycle)]
        else:
            tokens = self._next_allowed[(mixed % np.uint64(rule.vocab_size)).astype(np.int64)]
        if not rule.eos_token_ids or (rule.eos_after is None and rule.eos_probability == 0):
            return tokens
        is_eos = (mixed >> np.uint64(40)) < np.uint64(int(rule.eos_probability * 2**24))
        if rule.eos_after is not None:
            is_eos |= output_indices >= rule.eos_after
        return np.where(is_eos & eos_allowed, np.int32(rule.eos_token_ids[0]), tokens)


def avoid(token_id: int, banned: set[int], vocab_size: int) -> int:
    """Return the first id from token_id upwards, cyclically, that is not banned; token_id if all are."""
    for step in range(vocab_size):
        if (token_id + step) % vocab_size not in banned:
            return (token_id + step) % vocab_size
    return token_id


def reference_output(
    rule: TokenRule, prompt: Sequence[int], sampling: SequenceSampling, max_num_tokens: int
) -> list[int]:
    """Return the output of a request run alone, in plain integers and without the columns above.

    Args:
        rule: the simulated model.
        prompt: token ids.
        sampling: its parameters.
        max_num_tokens: sequence length at which it ends whatever max_tokens says.
    """
    state = sum((token + 1) * pow(MULTIPLIER, i, 2**64) for i, token in enumerate(prompt)) & _MASK
    limit = max_num_tokens - len(prompt)
    if sampling.max_tokens is not None:
        limit = min(limit, sampling.max_tokens)
    ends = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(rule.eos_token_ids))
    output: list[int] = []
    while len(output) < limit:
        token = _reference_token(rule, state, len(output), sampling)
        state = (state + (token + 1) * pow(MULTIPLIER, len(prompt) + len(output), 2**64)) & _MASK
        output.append(token)
        if token in ends and len(output) > sampling.min_tokens:
            break
    return output


def _reference_token(rule: TokenRule, state: int, index: int, sampling: SequenceSampling) -> int:
    mixed = _mix_int(state ^ _mix_int(seed_of(sampling)))
    may_stop = index >= sampling.min_tokens
    wants_eos = rule.eos_after is not None and index >= rule.eos_after
    wants_eos |= (mixed >> 40) < int(rule.eos_probability * 2**24)
    if wants_eos and may_stop and not sampling.ignore_eos and rule.eos_token_ids:
        return rule.eos_token_ids[0]
    if rule.cycle_token_ids:
        token = rule.cycle_token_ids[index % len(rule.cycle_token_ids)]
    else:
        token = avoid(mixed % rule.vocab_size, set(rule.eos_token_ids), rule.vocab_size)
    if may_stop:
        return token
    return avoid(token, set(sampling.stop_token_ids) | set(rule.eos_token_ids), rule.vocab_size)


def _mix_int(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
