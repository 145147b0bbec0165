"""Every flag of api-frontend: the field it sets, its default, and the values it refuses."""

from __future__ import annotations

import pytest

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.connection_counts import ConnectionCounts
from splitserve.engine_core.process.runtime_directory import default_engine_address
from splitserve.engine_core.settings.arguments import flag_words
from splitserve.engine_core.settings.setting import declared
from splitserve.frontend.cli import main, make_config, make_parser
from splitserve.frontend.config import FrontendConfig
from splitserve.frontend.http.api_keys import hash_key
from tests.engine_core.settings.values import other_value

# Settings that take more than the declaration tells, or are written in another way.
SPECIAL = [
    (["--engine", "ipc:///a", "--engine", "tcp://[::1]:1"], "engines", ("ipc:///a", "tcp://[::1]:1")),
    (["--root-path", "/x"], "root_path", "/x"),
    (
        ["--api-key", "sk-key-one", "sk-key-two"],
        "api_key_hashes",
        (hash_key("sk-key-one"), hash_key("sk-key-two")),
    ),
    (["--public-path", "/health", "/metrics"], "public_paths", ("/health", "/metrics")),
    (["--allowed-origin", "https://a", "https://b"], "allowed_origins", ("https://a", "https://b")),
    (["--max-body-bytes", "2048"], "max_body_bytes", 2048),
    (["--max_body_bytes=0.5M"], "max_body_bytes", 2**19),
    (["--log-level", "ERROR"], "log_level", "error"),
    (["--max-connections", "2k"], "max_connections", 2000),
]
# Each of them needs others, or a file; tested below, and with servers.
TOGETHER = {
    "ssl_keyfile",
    "ssl_certfile",
    "launch_dir",
    "launch_number",
    "launch_fd",
    "compaction_key_file",
    "chat_template",
}
PLAIN = [
    (flag_words([each], {each.field: value}), each.field, value)
    for each in declared(FrontendConfig)
    if each.field not in TOGETHER | {field for _, field, _ in SPECIAL}
    for value in [other_value(each)]
]


def config_of(argv: list[str]) -> FrontendConfig:
    return make_config(make_parser().parse_args(argv))


@pytest.mark.parametrize(("argv", "field", "value"), SPECIAL + PLAIN, ids=lambda value: str(value)[:30])
def test_a_flag_sets_its_field_and_no_other(argv: list[str], field: str, value: object) -> None:
    config, default = config_of(argv), config_of([])
    changed = {
        name for name in FrontendConfig.__struct_fields__ if getattr(config, name) != getattr(default, name)
    }
    assert getattr(config, field) == value
    assert changed == {field}


def test_every_field_of_the_configuration_is_a_setting() -> None:
    fields = set(FrontendConfig.__struct_fields__) - {"api_key_hashes", "admin_key_hashes"}
    assert {each.field for each in declared(FrontendConfig)} == fields


def test_the_parsers_defaults_are_those_of_the_configuration() -> None:
    config = config_of([])
    assert config.engines == (default_engine_address(),)
    assert config.frontend_id.startswith("frontend-")
    plain = FrontendConfig(engines=config.engines, frontend_id=config.frontend_id)
    assert config == plain


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--engine", "http://x"], "--engine"),
        (["--engine", "tcp://10.0.0.1:5555"], "reachable from other machines"),
        (["--ssl-keyfile", "/none.pem", "--ssl-certfile", "/none.pem"], "--ssl-certfile /none.pem does not"),
        (["--port", "65536"], "--port must be from 0 to 65535"),
        (["--uds", "/a", "--fd", "3"], "exclude each other"),
        (["--root-path", "x"], "--root-path"),
        (["--root-path", "/x/"], "--root-path"),
        (["--root-path", "/v1"], "--root-path must not be one of /v1"),
        (["--public-path", "/v1/completions"], "--public-path must be one of /health"),
        (["--allow-credentials", "--allowed-origin", "*"], "--allow-credentials"),
        (["--ssl-keyfile", "/k"], "together"),
        (["--generation-config", "vllm"], "--generation-config must be one of auto, none"),
        (["--log-level", "loud"], "--log-level"),
        (["--log-format", "xml"], "--log-format"),
        (["--tenant-header", "X Tenant"], "--tenant-header"),
        (["--compaction-key-file", "/no/such/key"], "--compaction-key-file cannot be read"),
        (["--admin-key-file", "/no/such/key"], "--admin-key-file cannot be read"),
        (["--otlp-traces-endpoint", "grpc://x:4317"], "--otlp-traces-endpoint must be a URL"),
        (["--api-key", ""], "--api-key or --api-key-file must be 1 to 512"),
        (["--api-key", "x" * 513], "--api-key or --api-key-file must be 1 to 512"),
        (["--max-body-bytes", "1"], "--max-body-bytes"),
        (["--header-timeout", "0"], "--header-timeout"),
        (["--body-timeout", "nan"], "--body-timeout"),
        (["--write-stall", "-1"], "--write-stall"),
        (["--sse-keep-alive", "inf"], "--sse-keep-alive"),
        (["--max-logprobs", "161"], "--max-logprobs must be from 0 to 160"),
        (["--max-open-requests", "0"], "--max-open-requests"),
        (["--max-connections", "0"], "--max-connections"),
        (["--max-connections-per-address", "-1"], "--max-connections-per-address"),
        (["--health-timeout", "0"], "--health-timeout"),
        (["--shutdown-timeout", "-1"], "--shutdown-timeout"),
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused_with_its_range(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert words in capsys.readouterr().err
    with pytest.raises(ConfigError):
        config_of(argv)


def test_what_serve_tells_a_frontend_of_the_launch() -> None:
    config = config_of(["--launch-dir", "/d", "--launch-number", "2", "--launch-fd", "7"])
    assert (config.launch_dir, config.launch_number, config.launch_fd) == ("/d", 2, 7)
    assert config.frontend_id.startswith("frontend-2-")


@pytest.mark.parametrize("words", [["--launch-dir", "/d"], ["--launch-number", "1"], ["--launch-fd", "7"]])
def test_a_launch_that_is_told_in_part_is_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="must be given together"):
        config_of(words)


def test_a_number_beyond_the_launch_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    counts = ConnectionCounts.create(2)
    words = ["--launch-dir", "/d", "--launch-number", "3", "--launch-fd", str(counts.fd)]
    assert main([*words, "--engine", "ipc:///a", "--port", "0"]) == 2
    assert "--launch-number must be from 1 to 2, got 3" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--por", "1"], ["--port", "x"], ["--none"], ["extra"]])
def test_what_argparse_refuses_is_exit_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        make_parser().parse_args(argv)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("api-frontend: error:")
