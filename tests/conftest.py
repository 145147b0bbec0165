"""Fixtures and settings of every test folder."""

from __future__ import annotations

import importlib.util
import inspect
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.halves import is_left_out

if TYPE_CHECKING:
    from tests.checkpoints import CheckpointCache

# Tests on a GPU need no hypothesis, and their machine has none.
if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import HealthCheck, settings

    # Neither a busy machine nor another seed may decide whether a test passes: by default an example that
    # takes 200 ms fails, or a slow start of drawing them, and each run draws other ones.
    settings.register_profile(
        "tests", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
    )
    # For `make soak`: pytest --hypothesis-profile=fresh --hypothesis-seed=N draws the examples of that seed.
    settings.register_profile("fresh", settings.get_profile("tests"), derandomize=False)
    settings.load_profile("tests")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that have nothing of what is asked for."""
    if collection_path.match("test_*.py") and is_left_out(collection_path, config.option.markexpr):
        return True
    return None


@pytest.fixture(scope="session", autouse=True)
def no_proxy() -> Iterator[None]:
    """Every server of a test is on this machine; a proxy that the environment names cannot reach it."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("NO_PROXY", "no_proxy"):
            patched.setenv(name, "*")
        yield


@pytest.fixture(scope="session", autouse=True)
def patient_http() -> Iterator[None]:
    """By default httpx waits 5 s, which a server on a busy machine may need for its first answer."""
    if importlib.util.find_spec("httpx") is None:
        yield
        return
    import httpx

    default = inspect.signature(httpx.get).parameters["timeout"].default
    with pytest.MonkeyPatch.context() as patched:
        for phase in ("connect", "read", "write", "pool"):
            patched.setattr(default, phase, 60.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def default_signals() -> Iterator[None]:
    """Under nohup, or in the background of a script, signals are ignored, by what tests start as well."""
    defaults: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    ignored = [number for number in defaults if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, defaults[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> CheckpointCache:
    """Tiny random checkpoints, each made once: `checkpoints.get(CheckpointSpec("llama"))` is a directory."""
    from tests.checkpoints import CheckpointCache

    return CheckpointCache(tmp_path_factory.mktemp("checkpoints"))
