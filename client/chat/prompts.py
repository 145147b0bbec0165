"""Where do prompts come from: typed in a terminal, or piped in?"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from splitserve.engine_core.errors import ConfigError

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindings

PROMPT = "> "
MAX_PIPED_BYTES = 2**26


def given_prompt(quick: str, model: str | None) -> str | None:
    """Return the one prompt to answer: --quick, what is piped in, or both; None to ask in the terminal.

    Args:
        quick: what --quick says, or "".
        model: what stands in the place of the model; None if nothing does.

    Raises:
        ConfigError: stdin is no terminal, has nothing or too much, and there is no other prompt; or the
            prompt stands in the place of the model.
    """
    if model is not None and len(model.split()) > 1 and not Path(model).exists():
        raise ConfigError(f"{model!r:.100} stands in the place of MODEL; a prompt goes behind --quick")
    if sys.stdin is None or sys.stdin.isatty():
        return quick or None
    raw = sys.stdin.buffer.read(MAX_PIPED_BYTES + 1)
    if len(raw) > MAX_PIPED_BYTES:
        raise ConfigError("more than 64 MiB on stdin")
    piped = raw.decode(errors="replace").strip()
    if not quick and not piped:
        raise ConfigError("nothing to answer: stdin is empty, and there is no --quick")
    return "\n\n".join(each for each in (quick, piped) if each)


async def read_prompts(name: str, *, keeps_history: bool) -> AsyncIterator[str]:
    """Yield what is typed until Ctrl-D: Enter ends a prompt, Alt-Enter begins a new line, Ctrl-C drops it.

    Args:
        name: of the file of what was typed before.
        keeps_history: whether there is such a file.
    """
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    history = FileHistory(str(_history_file(name))) if keeps_history else InMemoryHistory()
    session: PromptSession[str] = PromptSession(
        history=history, multiline=True, key_bindings=_keys(), prompt_continuation="  "
    )
    while True:
        try:
            yield await session.prompt_async(PROMPT)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


def _keys() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _history_file(name: str) -> Path:
    """Return the file, which only this user can read."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    folder = Path(state).expanduser() / "splitserve"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{name}_history"
    path.touch(mode=0o600)
    return path
