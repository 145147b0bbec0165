"""A client of a real server that reads one stream."""

from __future__ import annotations

import threading

import httpx

from tests.engine_core.launcher.serving import DEADLINE_S


class Stream:
    """A streamed completion read by a thread of its own."""

    NUM_TOKENS = 300

    def __init__(self, url: str, num_tokens: int = NUM_TOKENS) -> None:
        self._num_tokens = num_tokens
        self.num_chunks = 0
        self.broken = False
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url,), daemon=True)
        self._thread.start()

    def _read(self, url: str) -> None:
        body = {"model": "tiny", "prompt": "x", "max_tokens": self._num_tokens, "stream": True}
        body |= {"ignore_eos": True, "return_token_ids": True, "seed": 3}
        try:
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=DEADLINE_S) as answer:
                for line in answer.iter_lines():
                    if '"token_ids":[' in line:
                        tokens = line.partition('"token_ids":[')[2].partition("]")[0]
                        self.num_chunks += len(tokens.split(",")) if tokens else 0
                        self._first.set()
        except httpx.TransportError:
            self.broken = True
        self._first.set()

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def wait_first(self) -> None:
        assert self._first.wait(DEADLINE_S)
        assert self.num_chunks, "it broke before its first token"

    def finish(self) -> tuple[int, bool]:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        return self.num_chunks, self.broken
