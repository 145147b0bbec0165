"""What one client has seen of one request, and what differs from the same request undisturbed; no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Choice:
    """What a choice has so far; floats as they were written, so that equality is bitwise."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[object] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: object = None

    def is_start_of(self, whole: Choice) -> bool:
        """Whether all that came could be how the other one begins."""
        return (
            whole.text.startswith(self.text)
            and whole.token_ids[: len(self.token_ids)] == self.token_ids
            and whole.logprobs[: len(self.logprobs)] == self.logprobs
            and self.finish_reason in (None, whole.finish_reason)
        )


@dataclass
class History:
    """The record of a client, made as things happen.

    Attributes:
        begun_s: when it asked.
        times_s: when each event came that brought something of a choice, or the whole answer.
        choices: by index.
        usage: tokens of the prompt and of all choices.
        num_done: how often the end of the stream was announced.
        faults: what no client may see: errors, events out of order, a broken connection.
        was_cut_off: the connection broke before the answer was whole.
    """

    begun_s: float = 0.0
    times_s: list[float] = field(default_factory=list)
    choices: dict[int, Choice] = field(default_factory=dict)
    prompt_logprobs: list[object] = field(default_factory=list)
    usage: tuple[int, int] | None = None
    num_done: int = 0
    faults: list[str] = field(default_factory=list)
    was_cut_off: bool = False
    _ids: set[str] = field(default_factory=set)

    def take(self, now_s: float, payload: dict[str, Any]) -> None:
        """Record a whole answer or one event of a stream, as OpenAI's API words them."""
        if "error" in payload:
            self.faults.append(f"error {payload['error']}")
            return
        self._check_id(payload.get("id", ""))
        if usage := payload.get("usage"):
            self.usage = usage["prompt_tokens"], usage["completion_tokens"]
        for part in payload["choices"]:
            self.prompt_logprobs += part.get("prompt_logprobs") or []
            self.add(
                now_s,
                part["index"],
                Choice(
                    _text(part),
                    part.get("token_ids") or [],
                    list(_logprobs(part.get("logprobs") or {})),
                    part.get("finish_reason"),
                    part.get("stop_reason"),
                ),
            )

    def add(self, now_s: float, index: int, new: Choice) -> None:
        """Record what is new of a choice."""
        if self.num_done:
            self.faults.append("an event after the end")
        choice = self.choices.setdefault(index, Choice())
        if choice.finish_reason is not None:
            self.faults.append(f"choice {index} went on after its end")
        choice.text += new.text
        choice.token_ids += new.token_ids
        choice.logprobs += new.logprobs
        choice.finish_reason = new.finish_reason
        choice.stop_reason = new.stop_reason
        if new != Choice():
            self.times_s.append(now_s)

    def done(self) -> None:
        """Record the announced end of a stream."""
        self.num_done += 1
        if self.num_done > 1:
            self.faults.append("the end twice")

    def fail(self, why: str) -> None:
        """Record that the answer is an error."""
        self.faults.append(why)

    def cut_off(self, why: str) -> None:
        """Record that the connection broke before the answer was whole."""
        self.was_cut_off = True
        self.faults.append(why)

    @property
    def is_whole(self) -> bool:
        """Whether every choice came to its end, and nothing happened that must not."""
        ended = all(choice.finish_reason is not None for choice in self.choices.values())
        return bool(self.choices) and ended and not self.faults

    def was_open(self, at_s: float) -> bool:
        """Whether part of the answer had come by then, and part had not or never came."""
        if not self.times_s or at_s < self.times_s[0]:
            return False
        return at_s < self.times_s[-1] or not self.is_whole

    def is_start_of(self, whole: History) -> bool:
        """Whether all that came could be how the other answer begins."""
        return all(
            index in whole.choices and choice.is_start_of(whole.choices[index])
            for index, choice in self.choices.items()
        )

    def longest_gap_s(self, since_s: float) -> float:
        """Return the longest pause between two events of which the second came after a point in time."""
        pairs = zip(self.times_s, self.times_s[1:], strict=False)
        return max((later - earlier for earlier, later in pairs if later > since_s), default=0.0)

    def _check_id(self, answer_id: str) -> None:
        self._ids.add(answer_id)
        if len(self._ids) > 1:
            self.faults.append("the id changed")


def differences(seen: History, reference: History) -> list[str]:
    """Return what differs from the undisturbed run, in words; nothing if all is as it has to be.

    Times and the cut into events may differ, and nothing else.
    """
    found = list(seen.faults)
    if seen.choices.keys() != reference.choices.keys():
        found.append(f"choices {sorted(seen.choices)} instead of {sorted(reference.choices)}")
    for index in sorted(seen.choices.keys() & reference.choices.keys()):
        found += _choice_differences(index, seen.choices[index], reference.choices[index])
    for name in ("usage", "prompt_logprobs", "num_done"):
        if getattr(seen, name) != getattr(reference, name):
            found.append(
                f"{name} {_shown(getattr(seen, name))} instead of {_shown(getattr(reference, name))}"
            )
    return found


def _choice_differences(index: int, seen: Choice, reference: Choice) -> Iterator[str]:
    for name in ("text", "token_ids", "logprobs"):
        ours, theirs = getattr(seen, name), getattr(reference, name)
        if ours != theirs:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
            at = min(len(ours), len(theirs)) if at is None else at
            here = f"{_shown(ours[at : at + 8])} instead of {_shown(theirs[at : at + 8])}"
            yield f"choice {index}: {name} differs at {at} of {len(theirs)} ({len(ours)} came): {here}"
    for name in ("finish_reason", "stop_reason"):
        ours, theirs = getattr(seen, name), getattr(reference, name)
        if ours != theirs:
            yield f"choice {index}: {name} {ours!r} instead of {theirs!r}"


def _shown(value: object) -> str:
    return repr(value)[:200]


def _text(part: dict[str, Any]) -> str:
    """The text of a choice of any kind: completion or chat, whole or an event."""
    if "text" in part:
        return str(part["text"])
    return (part.get("message") or part["delta"]).get("content") or ""


def _logprobs(logprobs: dict[str, Any]) -> Iterator[object]:
    """One value per token, with all that is said about it but its place in the text."""
    if "content" in logprobs:
        yield from logprobs["content"] or ()
        return
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    yield from zip(*(logprobs[name] for name in names if name in logprobs), strict=True)
