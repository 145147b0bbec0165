"""A server of the command's own: private, and gone with the command."""

from __future__ import annotations

import os
import stat

import pytest

from splitserve.client.target.own_server import OwnServer
from splitserve.client.target.settings import TargetSettings
from splitserve.client.target.target import target
from splitserve.engine_core.errors import ConfigError, EngineUnavailableError

pytestmark = pytest.mark.system


def test_nobody_else_can_reach_it(server_url: str) -> None:
    folder = os.path.dirname(server_url.removeprefix("unix:"))
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


def test_a_model_that_cannot_be_served_is_an_error_and_leaves_nothing(
    tmp_path: object, capfd: pytest.CaptureFixture[str]
) -> None:
    server = OwnServer(f"{tmp_path}/nothing-here")
    with pytest.raises(EngineUnavailableError, match=r"did not start .exit code 3"), server:
        pass
    assert "nothing-here" in capfd.readouterr().err
    assert not os.path.exists(os.path.dirname(server.url.removeprefix("unix:")))


def test_a_server_and_a_model_of_its_own_cannot_both_be_named() -> None:
    with pytest.raises(ConfigError, match="not both"), target(TargetSettings(url="http://h"), "m"):
        pass
    with pytest.raises(ConfigError, match="--serve-flags"), target(TargetSettings(serve_flags="-x"), None):
        pass
