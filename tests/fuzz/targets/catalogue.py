"""All targets by name, with their share of the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.fuzz.target import Target


class Entry(NamedTuple):
    """One target.

    Attributes:
        make: starts it; imported then, as one does not need what another does.
        share: of the time of all.
    """

    make: Callable[[], Target]
    share: float


def _engine_frames() -> Target:
    from tests.fuzz.targets.engine_frames import EngineFrames

    return EngineFrames()


def _engine_answers() -> Target:
    from tests.fuzz.targets.engine_answers import EngineAnswers

    return EngineAnswers()


def _failover_frames() -> Target:
    from tests.fuzz.targets.failover_frames import FailoverFrames

    return FailoverFrames()


def _worker_frames() -> Target:
    from tests.fuzz.targets.worker_frames import WorkerFrames

    return WorkerFrames()


def _model_files() -> Target:
    from tests.fuzz.targets.model_files import ModelFiles

    return ModelFiles()


def _weight_files() -> Target:
    from tests.fuzz.targets.weight_files import WeightFiles

    return WeightFiles()


def _text_files() -> Target:
    from tests.fuzz.targets.text_files import TextFiles

    return TextFiles()


def _kept_files() -> Target:
    from tests.fuzz.targets.kept_files import KeptFiles

    return KeptFiles()


def _bodies() -> Target:
    from tests.fuzz.targets.bodies import Bodies

    return Bodies()


def _http_requests() -> Target:
    from tests.fuzz.targets.http_requests import HttpRequests

    return HttpRequests()


def _engine_socket() -> Target:
    from tests.fuzz.targets.engine_socket import EngineSocket

    return EngineSocket()


CATALOGUE = {
    "engine-frames": Entry(_engine_frames, 3),
    "engine-answers": Entry(_engine_answers, 1),
    "failover-frames": Entry(_failover_frames, 1),
    "worker-frames": Entry(_worker_frames, 1),
    "model-files": Entry(_model_files, 1),
    "weight-files": Entry(_weight_files, 1),
    "text-files": Entry(_text_files, 1),
    "kept-files": Entry(_kept_files, 0.5),
    "bodies": Entry(_bodies, 2),
    "http-requests": Entry(_http_requests, 3),
    "engine-socket": Entry(_engine_socket, 1),
}
