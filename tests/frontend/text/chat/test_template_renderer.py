"""Templates run in a process of their own: their cost is bounded, and losing the process loses nothing."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from splitserve.engine_core.errors import (
    EngineUnavailableError,
    InvalidRequestError,
    ModelLoadError,
    OverloadedError,
)
from splitserve.frontend.text.chat import template_process
from splitserve.frontend.text.chat.template_process import RenderLimits, TemplateProcess
from splitserve.frontend.text.chat.template_renderer import Render, TemplateRenderer
from splitserve.frontend.text.limited import turns
from splitserve.frontend.text.limited.process import ProcessEndedError

ROOT = Path(__file__).parents[4]
# Nothing waits for this long unless the test fails.
DEADLINE_S = 60
PATIENT = RenderLimits(render_s=DEADLINE_S)
SOURCES = {
    "endless": "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
    "say": "{{ text }}",
}
HUNGRY = [
    "{{ 'a' * size }}",
    "{{ '%*d' % (size, 1) }}",
    "{{ text|center(size) }}",
    "{{ (text * size)|list|join('x') }}",
    "{{ [0] * size }}",
]


@pytest.fixture
def renderer() -> Iterator[TemplateRenderer]:
    made = TemplateRenderer(SOURCES, PATIENT)
    yield made
    made.close()


@pytest.fixture
def no_patience_with_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up soon on the template named so, and on no other, however slow the machine is."""
    real = TemplateProcess.render

    def impatient(self: TemplateProcess, name: str, variables: Mapping[str, object], size: int) -> str:
        self._limits = replace(PATIENT, render_s=0.3 if name == "endless" else DEADLINE_S)
        return real(self, name, variables, size)

    monkeypatch.setattr(TemplateProcess, "render", impatient)


def render(renderer: TemplateRenderer, name: str = "say", **variables: object) -> str:
    return renderer.submit(lambda render: render(name, variables, 100)).result(DEADLINE_S)


def has_ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], DEADLINE_S)[0])


@pytest.mark.usefixtures("no_patience_with_endless")
def test_a_template_without_end_is_refused_and_the_next_request_served(renderer: TemplateRenderer) -> None:
    with pytest.raises(InvalidRequestError, match=r"took longer than 0\.3 s"):
        render(renderer, "endless")
    assert render(renderer, text="Hello") == "Hello"


@pytest.mark.usefixtures("no_patience_with_endless")
def test_who_waits_behind_a_template_without_end_is_served(renderer: TemplateRenderer) -> None:
    endless = renderer.submit(lambda render: render("endless", {}, 100))
    waiting = renderer.submit(lambda render: render("say", {"text": "Hello"}, 100))
    assert isinstance(endless.exception(DEADLINE_S), InvalidRequestError)
    assert waiting.result(DEADLINE_S) == "Hello"


def test_a_number_that_takes_minutes_is_refused() -> None:
    renderer = TemplateRenderer({"power": "{{ base ** 100000000 > 1 }}"}, RenderLimits(render_s=0.3))
    with pytest.raises(InvalidRequestError, match="took longer"):
        render(renderer, "power", base=10)


@pytest.mark.parametrize("source", HUNGRY)
def test_a_template_that_takes_too_much_memory_is_refused(source: str) -> None:
    renderer = TemplateRenderer({"hungry": source, **SOURCES}, PATIENT)
    with pytest.raises(InvalidRequestError, match="used more than 512 MiB"):
        render(renderer, "hungry", text="a", size=10**9)
    assert render(renderer, text="Hello") == "Hello"


def test_what_is_constant_in_a_template_has_its_limits_too() -> None:
    with pytest.raises(ModelLoadError, match="compiling the chat template took longer"):
        TemplateRenderer({"default": "{{ 10**100000000 }}"}, RenderLimits(compile_s=0.5))


def test_a_process_killed_between_requests_is_replaced(renderer: TemplateRenderer) -> None:
    first = renderer.pid
    os.kill(first, signal.SIGKILL)
    assert render(renderer, text="Hello") == "Hello"
    assert renderer.pid not in (0, first)


def test_a_rendering_that_loses_its_process_is_tried_once_more(
    renderer: TemplateRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = TemplateProcess.render, []

    def lose_first(self: TemplateProcess, name: str, variables: Mapping[str, object], size: int) -> str:
        calls.append(name)
        if len(calls) == 1:
            os.kill(self.pid, signal.SIGKILL)
        return real(self, name, variables, size)

    monkeypatch.setattr(TemplateProcess, "render", lose_first)
    assert render(renderer, text="Hello") == "Hello"
    assert len(calls) == 2


def test_a_rendering_whose_process_is_stopped_is_tried_once_more(
    renderer: TemplateRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, stopped = TemplateProcess.render, list[int]()

    def stop_first(self: TemplateProcess, name: str, variables: Mapping[str, object], size: int) -> str:
        self._limits = PATIENT
        if not stopped:
            stopped.append(self.pid)
            self._limits = replace(PATIENT, render_s=0.3)
            os.kill(self.pid, signal.SIGSTOP)
        return real(self, name, variables, size)

    monkeypatch.setattr(TemplateProcess, "render", stop_first)
    assert render(renderer, text="Hello") == "Hello"
    assert renderer.pid not in (0, *stopped)


def test_a_rendering_that_loses_its_process_twice_is_refused(
    renderer: TemplateRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(self: TemplateProcess, *_: object) -> str:
        raise ProcessEndedError("killed by SIGXCPU")

    with monkeypatch.context() as patch:
        patch.setattr(TemplateProcess, "render", lose)
        with pytest.raises(InvalidRequestError, match="twice: killed by SIGXCPU"):
            render(renderer, text="Hello")
    assert render(renderer, text="Hello") == "Hello"


def test_what_jinja_imports_late_is_there_although_no_file_can_be_opened() -> None:
    sources = {
        "late": "{{ lipsum(1)|length > 9 }} {{ [1]|pprint }} {{ strftime_now('%Y')|length }}{{ 'a'|urlize }}",
        "wrong": "{{ 1 / 0 }}",
    }
    renderer = TemplateRenderer(sources, PATIENT)
    assert render(renderer, "late").startswith("True [1] 4a")
    with pytest.raises(InvalidRequestError, match="ZeroDivisionError"):
        render(renderer, "wrong")


@pytest.mark.parametrize("text", ["\ud800", "é\ufdd0🙂\x00", "a" * 100])
def test_any_text_passes_both_ways(renderer: TemplateRenderer, text: str) -> None:
    assert render(renderer, text=text) == text


def test_long_words_of_a_template_are_cut() -> None:
    renderer = TemplateRenderer({"loud": "{{ raise_exception('a' * 100000) }}"}, PATIENT)
    with pytest.raises(InvalidRequestError) as caught:
        render(renderer, "loud")
    assert len(str(caught.value)) < 1100


def test_messages_beyond_the_limit_are_refused_before_they_are_sent(
    renderer: TemplateRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_process, "MAX_REQUEST_BYTES", 200)
    assert render(renderer, text="a" * 100)
    with pytest.raises(InvalidRequestError, match="more than 200"):
        render(renderer, text="a" * 200)


@pytest.mark.usefixtures("no_patience_with_endless")
def test_a_replaced_process_is_logged(renderer: TemplateRenderer, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvalidRequestError):
        render(renderer, "endless")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "took longer" in caplog.text


def test_values_that_are_not_json_are_refused(renderer: TemplateRenderer) -> None:
    with pytest.raises(InvalidRequestError, match="must be JSON values"):
        render(renderer, text=object())


def test_no_more_wait_than_the_bound(renderer: TemplateRenderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_WAITING", 1)
    go_on = threading.Event()
    first = renderer.submit(lambda _: go_on.wait(DEADLINE_S))
    with pytest.raises(OverloadedError):
        render(renderer, text="Hello")
    go_on.set()
    assert first.result(DEADLINE_S)


async def test_a_request_given_up_in_the_queue_is_not_rendered(renderer: TemplateRenderer) -> None:
    go_on, rendered = threading.Event(), []
    first = renderer.submit(lambda _: go_on.wait(DEADLINE_S))
    second = asyncio.wrap_future(renderer.submit(lambda _: rendered.append(1)))
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    go_on.set()
    assert first.result(DEADLINE_S)
    assert render(renderer, text="Hello") == "Hello"
    assert rendered == []


def test_closing_ends_the_process_and_refuses_what_comes_later(renderer: TemplateRenderer) -> None:
    pidfd = os.pidfd_open(renderer.pid)
    renderer.close()
    renderer.close()
    assert has_ended(pidfd)
    os.close(pidfd)
    with pytest.raises(EngineUnavailableError):
        render(renderer, text="Hello")


def test_closing_ends_what_is_being_rendered() -> None:
    renderer = TemplateRenderer(SOURCES, PATIENT)
    has_begun = threading.Event()

    def job(render: Render) -> str:
        has_begun.set()
        return render("endless", {}, 100)

    future = renderer.submit(job)
    has_begun.wait(DEADLINE_S)
    renderer.close()
    assert isinstance(future.exception(DEADLINE_S), EngineUnavailableError)


def test_a_renderer_that_is_dropped_ends_its_process() -> None:
    renderer = TemplateRenderer(SOURCES)
    pidfd = os.pidfd_open(renderer.pid)
    del renderer
    assert has_ended(pidfd)
    os.close(pidfd)


def test_the_process_dies_with_its_parent() -> None:
    code = (
        "import sys\n"
        "from splitserve.frontend.text.chat.template_renderer import TemplateRenderer\n"
        f"renderer = TemplateRenderer({SOURCES!r})\n"
        "print(renderer.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pidfd = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    assert has_ended(pidfd)
    os.close(pidfd)


def test_the_process_starts_without_the_engine(renderer: TemplateRenderer) -> None:
    code = (
        "import sys, splitserve.frontend.text.chat.template_child\n"
        "heavy = {'msgspec', 'zmq', 'numpy', 'tokenizers', 'fastapi', 'splitserve.engine_core'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
