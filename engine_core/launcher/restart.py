"""`splitserve restart`: asks a running server for a rolling restart and waits for its end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Annotated

from splitserve.engine_core.errors import EXIT_FAILED, EXIT_OK, ConfigError
from splitserve.engine_core.process.runtime_directory import runtime_directory
from splitserve.engine_core.process.server_record import ServerRecord, read_record
from splitserve.engine_core.settings.setting import Setting, Settings, declared

POLL_S = 0.05


class RestartSettings(Settings, frozen=True, kw_only=True):
    """Settings of `splitserve restart`; a server needs to be named only if there are several."""

    server_pid: Annotated[
        int,
        Setting(
            "process id of `splitserve serve`",
            "which server",
            flag="--pid",
            low=0,
            high=2**31 - 1,
            default="the only one",
        ),
    ] = 0
    port: Annotated[
        int,
        Setting("port that it listens on", "which server", low=0, high=65535, default="the only one"),
    ] = 0
    wait: Annotated[
        bool, Setting("wait until all of its processes are replaced", "which server", negatable=True)
    ] = True


RESTART = declared(RestartSettings)


def restart(settings: RestartSettings, say: Callable[[str], None]) -> int:
    """Restart the server that is meant; return the exit code.

    Args:
        settings: which server, and whether to wait.
        say: tells a line.

    Raises:
        ConfigError: there is no such server, or more than one.
    """
    directory, record = find_server(settings)
    begun_s = time.monotonic()
    os.kill(record.pid, signal.SIGHUP)
    if not settings.wait:
        return EXIT_OK
    # A restart in progress began before we asked: ours is the next.
    wanted = record.num_rolls_begun + 1
    while record.num_rolls_ended < wanted:
        time.sleep(POLL_S)
        found = read_record(directory)
        if found is None:
            say(f"the server with pid {record.pid} has ended")
            return EXIT_FAILED
        record = found
    if record.failure:
        say(f"the restart of {record.place} failed: {record.failure}")
        return EXIT_FAILED
    say(f"restarted {record.place} in {time.monotonic() - begun_s:.1f} s")
    return EXIT_OK


def find_server(settings: RestartSettings) -> tuple[str, ServerRecord]:
    """Return the directory and record of the running server that is meant.

    Raises:
        ConfigError: there is no such server of this user, or more than one.
    """
    found = [
        (directory, record)
        for directory, record in _running_servers()
        if settings.server_pid in (0, record.pid) and settings.port in (0, record.port)
    ]
    if not found:
        raise ConfigError(f"no such server is ready; records of servers are in {runtime_directory()}")
    if len(found) > 1:
        servers = ", ".join(f"{record.place} (pid {record.pid})" for _, record in found)
        raise ConfigError(f"several servers run, name one with --pid or --port: {servers}")
    return found[0]


def _running_servers() -> list[tuple[str, ServerRecord]]:
    runtime = runtime_directory()
    names = sorted(os.listdir(runtime)) if os.path.isdir(runtime) else []
    directories = [os.path.join(runtime, name) for name in names if name.startswith("serve-")]
    return [
        (directory, record) for directory in directories if (record := read_record(directory)) is not None
    ]
