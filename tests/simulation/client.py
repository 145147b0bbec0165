"""A client: what it asks, what it sees, and what it ought to have seen."""

from __future__ import annotations

from random import Random

from splitserve.engine_core.errors import SplitServeError
from splitserve.engine_core.executor.simulated.logprobs import SimulatedLogprobs
from splitserve.engine_core.executor.simulated.tokens import reference_output
from splitserve.engine_core.ipc.messages import AddRequest, Finished, FinishReason
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.connection.token_relay import TokenRelay
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.engines.stream.engine_generation import EngineGeneration
from splitserve.frontend.engines.stream.sequence_stream import SequenceStream
from splitserve.frontend.engines.stream.split_request import split_request
from tests.frontend.http.fake_pool import ByteTokenizer
from tests.history import Choice, History, differences
from tests.simulation.engine import MAX_MODEL_LEN, POISON, RULE, VOCAB_SIZE


class Client:
    """One request, from its beginning to its end, in whatever way that comes.

    Attributes:
        begun_s, opened_s, ended_s: when it asked, when an engine was first asked, and when it was over.
        error: what it was told in place of the rest.
        is_poison: whoever computes it dies.
        leaves_after_s: it hangs up so long after its request was sent; None stays.
    """

    def __init__(self, number: int, request: GenerationRequest, leaves_after_s: float | None) -> None:
        self.number = number
        self.request = request
        self.leaves_after_s = leaves_after_s
        self.is_poison = request.prompt_token_ids[0] == POISON
        self.generation: EngineGeneration | None = None
        self.history = History()
        self.error: SplitServeError | None = None
        self.begun_s = self.opened_s = self.ended_s = 0.0
        self.has_left = self.is_cut = self.is_over = False
        self._num_tokens = 0

    # --- what it sees ---

    def begin(self, now_s: float) -> None:
        self.begun_s = now_s

    def opened(self, now_s: float, generation: EngineGeneration) -> None:
        self.opened_s, self.generation = now_s, generation

    def take(self, now_s: float) -> None:
        """Take what is new, as an event stream does when it is woken."""
        assert self.generation is not None
        try:
            deltas = self.generation.take()
        except SplitServeError as error:
            self.failed(now_s, error)
            return
        for delta in deltas:
            self._num_tokens += len(delta.token_ids)
            self.history.add(now_s, delta.index, _choice(delta))
            self.history.prompt_logprobs += map(str, delta.prompt_logprobs or ())
        if self.generation.finished:
            self.history.usage = len(self.request.prompt_token_ids), self._num_tokens
            self.history.done()
            self._end(now_s)

    def failed(self, now_s: float, error: SplitServeError) -> None:
        self.error = error
        self._end(now_s)

    def leave(self, now_s: float) -> None:
        """Hang up."""
        if not self.is_over:
            self.has_left = True
            self._end(now_s)

    def broke(self, now_s: float) -> None:
        """Its frontend died."""
        if not self.is_over:
            self.is_cut = self.is_over = True
            self.ended_s = now_s

    def _end(self, now_s: float) -> None:
        self.is_over, self.ended_s = True, now_s
        if self.generation is not None:
            self.generation.close()

    # --- what it ought to have seen ---

    def differences(self) -> list[str]:
        """What is wrong with what it has seen, as far as it has seen it."""
        reference = self._reference()
        if not (self.error or self.has_left or self.is_cut):
            return differences(self.history, reference)
        found = list(self.history.faults)
        for index, choice in self.history.choices.items():
            whole = reference.choices[index]
            for name in ("text", "token_ids", "logprobs"):
                part, rest = getattr(choice, name), getattr(whole, name)
                if rest[: len(part)] != part:
                    found.append(f"choice {index}: {name} {part} is no beginning of {rest}")
        return found

    def _reference(self) -> History:
        history, num_tokens = History(), 0
        for index, message in enumerate(split_request(self.request)):
            source = OpenSequence(message, lambda: None, TokenRelay())
            _fill(source, self.request)
            stream = SequenceStream(
                index, source, self.request.sampling, self.request.prompt_token_ids, ByteTokenizer()
            )
            delta = stream.take()
            assert delta is not None
            history.add(0.0, index, _choice(delta))
            history.prompt_logprobs += map(str, delta.prompt_logprobs or ())
            num_tokens += len(delta.token_ids)
        history.usage = len(self.request.prompt_token_ids), num_tokens
        history.done()
        return history


def make_client(rng: Random, number: int, *, is_poison: bool, may_time_out: bool) -> Client:
    """A client with random wishes."""
    prompt = [rng.randrange(1, POISON) for _ in range(rng.choice([1, 3, 9, 30]))]
    if rng.random() < 0.6:
        prompt = [*rng.choice([range(1, 14), range(20, 45)]), *prompt]
    if is_poison:
        prompt[0] = POISON
    max_tokens = rng.choice([1, 10, 40, MAX_MODEL_LEN - len(prompt)])
    stops = tuple(rng.choice(["a", "ab", "\x07", "zz"]) for _ in range(rng.choice([0, 0, 0, 1, 2])))
    sampling = SamplingParams(
        n=rng.choice([1, 1, 1, 2, 3]),
        temperature=rng.choice([0.0, 1.0]),
        seed=rng.randrange(2**32),
        max_tokens=max_tokens,
        min_tokens=rng.choice([0, 0, min(4, max_tokens)]),
        ignore_eos=rng.random() < 0.3,
        stop=stops,
        logprobs=rng.choice([None, None, 0, 2]),
        prompt_logprobs=rng.choice([None, None, None, 1]),
        frequency_penalty=rng.choice([0.0, 0.5]),
        skip_special_tokens=False,
    )
    request = GenerationRequest(
        request_id=f"request-{number}",
        prompt_token_ids=prompt,
        sampling=sampling,
        streams=rng.random() < 0.7,
        timeout_s=rng.uniform(0.05, 3.0) if may_time_out and rng.random() < 0.1 else 0.0,
    )
    return Client(number, request, rng.uniform(0.0, 2.0) if rng.random() < 0.15 else None)


def _choice(delta: OutputDelta) -> Choice:
    logprobs: list[object] = [str(entry) for entry in delta.logprobs or ()]
    return Choice(delta.text, list(delta.token_ids), logprobs, delta.finish_reason, delta.stop_reason)


def _fill(source: OpenSequence, request: GenerationRequest) -> None:
    """Let a sequence have received what a lone run of it sends."""
    message: AddRequest = source.request
    prompt, sampling = list(request.prompt_token_ids), message.sampling
    output = reference_output(RULE, prompt, sampling, MAX_MODEL_LEN)
    source.token_ids.extend(output)
    says = SimulatedLogprobs(VOCAB_SIZE)
    if sampling.logprobs is not None:
        source.logprobs += [says._logprob((0, i), token, sampling.logprobs) for i, token in enumerate(output)]
    if sampling.prompt_logprobs is not None:
        for i, token in enumerate(prompt[1:], start=1):
            source.add_prompt_logprobs(says._logprob((0, i), token, sampling.prompt_logprobs))
    ends = not sampling.ignore_eos and output[-1] in RULE.eos_token_ids
    source.finished = Finished(0, FinishReason.STOP if ends else FinishReason.LENGTH)
