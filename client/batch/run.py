"""One run over a batch: as many requests in flight as allowed, each answer appended as it comes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator

import msgspec

from splitserve.client.batch.answers import AnswerFile
from splitserve.client.batch.requests import BatchFile, Place
from splitserve.client.http.api import Api
from splitserve.client.http.errors import ApiError
from splitserve.engine_core.batch_lines.answer_line import AnswerError, AnswerLine, answer_line
from splitserve.engine_core.batch_lines.request_line import RequestLine
from splitserve.engine_core.batch_lines.retries import wait_s

SYNC_PERIOD_S = 1.0
# Not the request is wrong, but how this command was started.
KEY_PROBLEMS = (401, 403)


class BatchRun:
    """Answers what has no answer yet.

    Args:
        api: of the server.
        requests: all of them.
        answers: where they go, with those that there are.
        model: to ask for in place of the one in each line, "" for that.
        max_retries: after faults that may pass.
        on_answer: called after each.
    """

    def __init__(
        self,
        api: Api,
        requests: BatchFile,
        answers: AnswerFile,
        *,
        model: str,
        max_retries: int,
        on_answer: Callable[[], object],
    ) -> None:
        self._api = api
        self._requests = requests
        self._answers = answers
        self._model = model
        self._max_retries = max_retries
        self._on_answer = on_answer
        self._rng = random.Random()
        self._fault: ApiError | None = None

    async def run(self, max_concurrency: int) -> ApiError | None:
        """Answer all, or return the fault for which some have none: they can be asked again later."""
        left = [place for place in self._requests.places if place.custom_id not in self._answers.done]
        sync = asyncio.create_task(self._sync())
        try:
            places = iter(left)
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(max_concurrency, len(left))):
                    tasks.create_task(self._work(places))
        finally:
            sync.cancel()
            self._answers.sync()
        return self._fault

    async def _work(self, places: Iterator[Place]) -> None:
        for place in places:
            if self._fault is not None:
                return
            answer = await self._ask(self._requests.read(place))
            if answer is not None:
                self._answers.append(answer)
                self._on_answer()

    async def _ask(self, request: RequestLine) -> AnswerLine | None:
        """Return the answer, a refusal included; None after a fault that may pass, again and again."""
        model = {"model": msgspec.Raw(msgspec.json.encode(self._model))} if self._model else {}
        body = msgspec.json.encode({**request.body, **model})
        num_failed = 0
        while True:
            try:
                raw = await self._api.post(self._path(request.url), body)
                return answer_line(request.custom_id, 200, raw)
            except ApiError as error:
                if error.status in KEY_PROBLEMS:
                    self._fault = error
                    return None
                if not error.may_pass:
                    refusal = AnswerError("request_refused", str(error))
                    return answer_line(request.custom_id, error.status, error.body, refusal)
                num_failed += 1
                if num_failed > self._max_retries:
                    self._fault = error
                if self._fault is not None:
                    return None
                await asyncio.sleep(wait_s(num_failed, error.retry_after_s, self._rng))

    def _path(self, url: str) -> str:
        return self._api.path(url.removeprefix("/v1"))

    async def _sync(self) -> None:
        """Keep what a dying machine can lose to about a second's answers."""
        while True:
            await asyncio.sleep(SYNC_PERIOD_S)
            await asyncio.to_thread(self._answers.sync)
