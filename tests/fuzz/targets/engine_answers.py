"""Mutated frames of an engine on the frontend's side of the connection, in process, with open streams above.

A piece of a case is one byte that says what happens after it, then the frame: bits 0-2 of the byte are
1: the engine goes on with every stream; 2: half a second passes; 3: the connection is lost and found; 4: new
streams are opened; otherwise the streams are woken, and take what there is.

An engine may spoil its own streams: then they end with an error that has a code and a status, and nothing
else comes out of it. A sound engine that takes over at the end of a case must find a sound frontend.
"""

from __future__ import annotations

from random import Random

from splitserve.engine_core.errors import (
    EngineUnavailableError,
    OverloadedError,
    ProtocolError,
    SplitServeError,
)
from splitserve.engine_core.ipc.codec import encode, engine_decoder, pack_int32, pack_int64
from splitserve.engine_core.ipc.messages import AddRequest, Finished, FinishReason, Ready, StepOutputs
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.connection.session import EngineSession
from splitserve.frontend.engines.stream.sequence_stream import SequenceStream
from splitserve.frontend.http.errors import error_response
from splitserve.frontend.text.tokenizer import Tokenizer
from tests.fuzz.case import Case
from tests.fuzz.folders import small_tokenizer
from tests.fuzz.mutation.formats import mutate_msgpack
from tests.fuzz.mutation.frames import EPOCH, MODEL, engine_frames, logprobs

PIECES_PER_CASE = 256
SAMPLINGS = (
    SamplingParams(seed=1, max_tokens=400),
    SamplingParams(seed=1, max_tokens=400, logprobs=2, prompt_logprobs=2),
    SamplingParams(seed=1, max_tokens=400, stop=("ab", "zzz")),
    SamplingParams(seed=1, max_tokens=400, logprobs=0, logprob_token_ids=(4, 5)),
)
SOUND_EPOCH = 2**40
PROMPT = [1, 2, 3, 4, 5]


class Front:
    """One session with its streams."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.session = EngineSession("frontend", "0.1.0", "ipc:///engine")
        self.streams: list[SequenceStream] = []
        self.woken: list[OpenSequence] = []
        self._tokenizer = tokenizer
        self.now_s = 100.0
        self.session.connected(self.now_s)

    def hear(self, frame: bytes) -> None:
        """What the client of an engine does with a frame."""
        try:
            self.session.receive(engine_decoder.decode(frame), self.now_s)
        except ProtocolError:
            return

    def open(self) -> None:
        """Open a stream of each kind, if the session lets us."""
        for sampling in SAMPLINGS:
            handle = self.session.next_handle()
            request = AddRequest(handle, f"r{handle}", pack_int32(PROMPT), sampling)
            try:
                sequence = self.session.open(request, lambda: None)
            except (EngineUnavailableError, OverloadedError):
                return
            self.streams.append(SequenceStream(0, sequence, sampling, PROMPT, self._tokenizer))

    def take(self) -> None:
        """Wake, and take what every stream has."""
        while self.session.sequences.wake_up(self.now_s):
            pass
        left = []
        for stream in self.streams:
            try:
                delta = stream.take()
                if delta is not None:
                    list(delta.logprobs), list(delta.prompt_logprobs or ())
                if stream.finished:
                    self._check_end(stream)
                    continue
                left.append(stream)
            except SplitServeError as error:
                check_error(error)
                self.session.abort([stream.source.request.handle])
        self.streams = left
        self.session.outbox.clear()

    def _check_end(self, stream: SequenceStream) -> None:
        self.session.abort([stream.source.request.handle])

    def go_on(self) -> None:
        """The engine sends every stream its next token."""
        rows = [(s.source.request.handle, len(s.source.token_ids)) for s in self.streams]
        handles, indices = [row[0] for row in rows], [row[1] for row in rows]
        epoch = self.session.ready.epoch if self.session.ready is not None else EPOCH
        columns = pack_int64(handles), pack_int32([65] * len(rows)), pack_int32(indices)
        entries = [logprobs(handle, index) for handle, index in rows]
        self.hear(encode(StepOutputs(epoch, *columns, logprobs=entries)))

    def end(self) -> None:
        """Another life of the engine, a sound one: a new stream gets its tokens."""
        self.session.disconnected(self.now_s)
        self.session.connected(self.now_s)
        self.take()
        assert not self.streams, "a stream outlived its engine"
        self.hear(
            encode(Ready(PROTOCOL_VERSION, "0.1.0", "engine-0", SOUND_EPOCH, MODEL, ["m"], 8, 20, 10.0))
        )
        sequence = self.session.open(
            AddRequest(2**50, "sound", pack_int32(PROMPT), SAMPLINGS[0]), lambda: None
        )
        stream = SequenceStream(0, sequence, SAMPLINGS[0], PROMPT, self._tokenizer)
        columns = pack_int64([2**50] * 3), pack_int32([66, 67, 68]), pack_int32([0, 1, 2])
        end = Finished(2**50, FinishReason.LENGTH)
        self.hear(encode(StepOutputs(SOUND_EPOCH, *columns, finished=[end])))
        self.session.sequences.wake_up(self.now_s)
        delta = stream.take()
        assert delta is not None
        assert (delta.token_ids, delta.finish_reason) == ([66, 67, 68], "length")
        assert not self.session.sequences, "sequences are left"


def check_error(error: SplitServeError) -> None:
    """Whatever the engine said, a client gets a status and a code."""
    assert 400 <= error.status < 600, f"status {error.status} of {error!r}"
    assert error.code, f"{error!r} has no code"
    assert error_response(error).status_code == error.status


class EngineAnswers:
    """See the module."""

    what = "frames"

    def __init__(self) -> None:
        self.corpus = engine_frames()
        self._tokenizer = small_tokenizer()

    def draw(self, rng: Random) -> Case:
        return [self._piece(rng) for _ in range(PIECES_PER_CASE)]

    def _piece(self, rng: Random) -> bytes:
        how = int(rng.random() * 8) if rng.random() < 0.3 else 0
        frame = self.corpus[int(rng.random() * len(self.corpus))]
        mutated = mutate_msgpack(rng, frame, self.corpus) if rng.random() < 0.9 else frame
        return bytes((how,)) + mutated

    def mutate(self, rng: Random, piece: bytes) -> bytes:
        return piece[:1] + mutate_msgpack(rng, piece[1:], self.corpus)

    def run(self, case: Case) -> int:
        front = Front(self._tokenizer)
        front.hear(self.corpus[1])
        front.open()
        for piece in case:
            front.hear(piece[1:])
            match piece[0] & 7 if piece else 0:
                case 1:
                    front.go_on()
                case 2:
                    front.now_s += 0.5
                    front.session.tick(front.now_s)
                case 3:
                    front.session.disconnected(front.now_s)
                    front.session.connected(front.now_s)
                case 4:
                    front.open()
                case _:
                    front.take()
        front.end()
        return len(case)

    def finish(self) -> str:
        return ""

    def close(self) -> None:
        """There is nothing to end."""
