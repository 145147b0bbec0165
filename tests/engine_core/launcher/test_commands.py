"""The two commands without a server: flags, help, errors, keys, environment."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from splitserve.engine_core import cli
from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.launcher import cli as splitserve
from splitserve.engine_core.launcher import serve_settings
from splitserve.engine_core.launcher.serve_settings import FRONTEND, SERVE
from splitserve.engine_core.process.runtime_directory import default_engine_address
from splitserve.engine_core.process.version import software_version
from splitserve.engine_core.settings.arguments import add_flags, flag_words, given_values, make_settings
from splitserve.engine_core.settings.flag_values import parse_dtype
from splitserve.engine_core.settings.setting import Declared, declared
from splitserve.frontend.config import FRONTEND_SETTINGS
from tests import cli_tables
from tests.engine_core.settings.values import other_value

ROOT = Path(__file__).resolve().parents[3]


ENGINE = declared(EngineConfig)


def given(words: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_flags(parser, ENGINE)
    return given_values(parser.parse_args(words), ENGINE)


def parse(words: list[str]) -> EngineConfig:
    return make_settings(EngineConfig, given(words))


# Settings that take more than the declaration tells, or need others: the words to type.
SPECIAL: dict[str, tuple[list[str], object]] = {
    "listen": (["--listen", "ipc:///x/y"], "ipc:///x/y"),
    "served_model_names": (["--served-model-name", "a", "b/c"], ["a", "b/c"]),
    "ray_address": (["--executor", "ray", "--ray-address", "10.0.0.5:6379"], "10.0.0.5:6379"),
    "ray_timeout_s": (["--executor", "ray", "--ray-timeout", "5"], 5.0),
    "kv_cache_memory_bytes": (["--kv-cache-memory-bytes", "2G"], 2 * 2**30),
    "tensor_parallel_size": (["-tp", "4"], 4),
    "pipeline_parallel_size": (["-pp", "2"], 2),
    "tenant_weights": (
        ["--tenant-weight", "a=2", "b=30", "--scheduling-policy", "fair"],
        ["a=2", "b=30"],
    ),
    "kv_events_address": (["--kv-events-address", "tcp://127.0.0.1:5557"], "tcp://127.0.0.1:5557"),
    "kv_events_replay_address": (
        ["--kv-events-address", "ipc:///x/e", "--kv-events-replay-address", "ipc:///x/r"],
        "ipc:///x/r",
    ),
    "kv_events_topic": (
        ["--kv-events-address", "ipc:///x/e", "--kv-events-topic", "kv@pod@model"],
        "kv@pod@model",
    ),
    "kv_events_buffer_steps": (
        ["--kv-events-address", "ipc:///x/e", "--kv-events-buffer-steps", "7"],
        7,
    ),
}


def test_every_field_of_the_configuration_is_a_setting() -> None:
    assert [each.field for each in ENGINE] == list(EngineConfig.__struct_fields__)


@pytest.mark.parametrize("each", ENGINE, ids=lambda each: each.flag)
def test_a_flag_sets_its_field_and_can_be_passed_on(each: Declared) -> None:
    value = other_value(each)
    words, value = SPECIAL.get(each.field) or (flag_words([each], {each.field: value}), value)
    config = parse(words)
    assert getattr(config, each.field) == value
    assert each.default != value, "the test would prove nothing"
    assert parse(flag_words(ENGINE, given(words))) == config


def test_without_flags_the_defaults_hold_and_nothing_is_passed_on() -> None:
    assert parse([]) == EngineConfig()
    assert flag_words(ENGINE, given([])) == []


def test_the_help_names_every_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # In a narrow terminal, names and addresses are cut where a line ends.
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for each in ENGINE:
        words = re.escape(each.setting.help)
        assert re.search(rf"{each.flag}[ ,][^()]*{words} \(default: [^)]+\)", text), each.flag
    assert f"(default: {default_engine_address()})" in text


@pytest.mark.parametrize(
    ("words", "flag", "allowed"),
    [
        (["--block-size", "0"], "--block-size", "from 2 to 256"),
        (["--max-num-seqs", "-3"], "--max-num-seqs", "from 1 to"),
        (["--lease", "nan"], "--lease", "from 1 to 3600"),
        (["--dtype", "int3"], "--dtype", "one of auto, float32, bfloat16, float16"),
        (["--drain-timeout", "inf"], "--drain-timeout", "from 0 to"),
        (["--kv-cache-memory-bytes", "99999999T"], "--kv-cache-memory-bytes", "from 0 to"),
        (["--kv-offload-gb", "-0.1"], "--kv-offload-gb", "from 0 to 1048576"),
        (["--kv-offload-gb", "nan"], "--kv-offload-gb", "from 0 to 1048576"),
        (["--tenant-weight", "a=0"], "--tenant-weight", "W from 1 to 1000"),
        (["--tenant-weight", "a"], "--tenant-weight", "NAME=W"),
        (["--tenant-weight", "a=1", "a=2"], "--tenant-weight", "each once"),
        (["--max-waiting-tokens", "0"], "--max-waiting-tokens", "from 1 to"),
        (["--queue-timeout", "-1"], "--queue-timeout", "from 0 to 604800"),
        (["--target-itl-ms", "nan"], "--target-itl-ms", "from 0 to 60000"),
        (["--log-wait", "-1"], "--log-wait", "from 0 to 86400"),
        (["--executor", "ray", "--ray-address", "ray://h:1"], "--ray-address", "HOST:PORT, auto or local"),
        (["--executor", "ray", "--ray-timeout", "0"], "--ray-timeout", "from 1 to 86400"),
        (["--ray-address", "auto"], "--ray-address", "given together with --executor ray"),
        (["--ray-timeout", "9"], "--ray-timeout", "given together with --executor ray"),
        (["--tensor-parallel-size", "0"], "--tensor-parallel-size", "from 1 to 64"),
        (["-pp", "65"], "--pipeline-parallel-size", "from 1 to 64"),
        (["-tp", "16", "-pp", "8"], "--tensor-parallel-size times --pipeline-parallel-size", "from 1 to 64"),
        (
            ["-tp", "2", "--executor", "simulated"],
            "--tensor-parallel-size times --pipeline-parallel-size",
            "1 with --executor simulated",
        ),
        (["--kv-events-buffer-steps", "0"], "--kv-events-buffer-steps", "from 1 to 1000000"),
        (["--kv-events-address", "inproc://x"], "--kv-events-address", "tcp://HOST:PORT"),
        (["--kv-events-replay-address", "5558"], "--kv-events-replay-address", "tcp://HOST:PORT"),
        (
            ["--kv-events-replay-address", "tcp://[::1]:5558"],
            "--kv-events-replay-address",
            "given together with --kv-events-address",
        ),
        (["--kv-events-topic", "t"], "--kv-events-topic", "given together with --kv-events-address"),
        (
            ["--kv-events-buffer-steps", "9999"],
            "--kv-events-buffer-steps",
            "given together with --kv-events-address",
        ),
        (["--tenant-weight", "a=2"], "--tenant-weight", "given together with --scheduling-policy fair"),
        (
            ["--tenant-weight", "a=2", "--scheduling-policy", "priority"],
            "--tenant-weight",
            "given together with --scheduling-policy fair",
        ),
        (["--kv-events-topic", "a b"], "--kv-events-topic", "256 visible ASCII"),
        (["--kv-events-topic", "x" * 257], "--kv-events-topic", "256 visible ASCII"),
        (
            ["--no-enable-prefix-caching", "--kv-events-address", "tcp://[::1]:5557"],
            "--kv-events-address",
            "left out with --no-enable-prefix-caching",
        ),
        (["--listen", "udp://x"], "--listen", "ipc://PATH"),
        (["--listen", f"ipc:///{'x' * 200}"], "--listen", "100 characters"),
    ],
)
def test_a_value_out_of_range_is_one_line_with_flag_and_range(
    words: list[str], flag: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"engine-core: error: {flag} must be")
    assert allowed in error
    assert error.count("\n") == 1


def test_the_offload_tier_without_prefix_caching_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--kv-offload-gb", "1", "--no-enable-prefix-caching"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("engine-core: error: --kv-offload-gb requires prefix caching")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["--no-such"], ["--block", "4"], ["--block-size", "x"], ["--ray-timeout", "soon"]]
)
def test_a_flag_that_does_not_parse_ends_with_code_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("engine-core: error: ")
    assert words[0].split("=")[0] in line


UNKNOWN = [
    (
        cli.main,
        ["--konfig", "x.yaml"],
        "unknown flag --konfig, did you mean --config? (see engine-core --help)",
    ),
    (cli.main, ["--max-modl-len=4"], "unknown flag --max-modl-len, did you mean --max-model-len?"),
    (cli.main, ["some-model"], "engine-core: error: unexpected argument 'some-model'"),
    (
        splitserve.main,
        ["serve", "--config", "x.yaml"],
        "splitserve serve: error: cannot read --config x.yaml: No such file or directory",
    ),
    (splitserve.main, ["serve", "m", "--api-keys", "k"], "unknown flag --api-keys, did you mean --api-key?"),
    (splitserve.main, ["serve", "--model", "m"], "the model is the first word: splitserve serve MODEL"),
    (splitserve.main, ["serve", "m", "n"], "splitserve serve: error: unexpected argument 'n'"),
    # The first letters of -tp and -pp are not these.
    (
        splitserve.main,
        ["serve", "m", "-t", "8"],
        "splitserve serve: error: unknown flag -t, it is --num-threads",
    ),
    (splitserve.main, ["serve", "-p", "80"], "splitserve serve: error: unknown flag -p, it is --port here"),
    (splitserve.main, ["serve", "-hf", "a/b"], "unknown flag -hf, the model is the first word"),
    # Those that are like them mean something else.
    (splitserve.main, ["serve", "m", "--ctx-size=8"], "unknown flag --ctx-size, it is --max-model-len"),
    (
        splitserve.main,
        ["serve", "m", "--enable-auto-tool-choice"],
        "unknown flag --enable-auto-tool-choice, tool calls need none",
    ),
    (splitserve.main, ["--port", "80"], "splitserve: error: unknown flag --port (see splitserve --help)"),
    (splitserve.main, ["env", "--all"], "splitserve env: error: unknown flag --all"),
]


@pytest.mark.parametrize(("main", "words", "said"), UNKNOWN)
def test_an_unknown_flag_is_named_with_the_nearest_one_and_the_right_help(
    main: Callable[[list[str]], int], words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_hints_are_for_flags_that_are_unknown_and_name_those_that_are_known() -> None:
    serve = splitserve.make_parser().commands()["serve"]
    known = serve._option_string_actions
    assert not serve.hints.keys() & known.keys()
    named = {word.strip(",") for hint in serve.hints.values() for word in hint.split() if word[0] == "-"}
    assert named <= known.keys()


def test_flags_may_be_typed_with_underscores_and_names_in_capitals() -> None:
    parser = cli.make_parser()
    args = parser.parse_args(["--max_model_len=32K", "--log_level", "DEBUG", "--served-model-name=a_b"])
    config = make_settings(EngineConfig, given_values(args, ENGINE))
    assert (config.max_model_len, config.log_level, config.served_model_names) == (32768, "debug", ["a_b"])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        *(("half", "float16"), ("fp16", "float16"), ("bf16", "bfloat16"), ("float", "float32")),
        *(("fp32", "float32"), ("auto", "auto"), ("BFloat16", "bfloat16")),
    ],
)
def test_data_types_have_short_names(typed: str, meant: str) -> None:
    assert parse_dtype(typed) == meant
    assert parse(["--dtype", typed]).dtype == meant


@pytest.mark.parametrize(
    ("typed", "meant"), [("bf16", "bfloat16"), ("fp8_e4m3", "fp8"), ("FP8", "fp8"), ("int8", "int8")]
)
def test_data_types_of_the_kv_cache_have_other_names(typed: str, meant: str) -> None:
    assert parse(["--kv-cache-dtype", typed]).kv_cache_dtype == meant


def test_serve_takes_every_setting_that_is_not_its_own_and_passes_it_on() -> None:
    passed_on = {each.flag for each in FRONTEND}
    own = {each.flag for each in FRONTEND_SETTINGS if not each.setting.serve}
    shared = {"--keys", "--insecure", "--log-level", "--log-format"}
    assert passed_on | own | shared == {each.flag for each in FRONTEND_SETTINGS}
    taken = (*SERVE, *FRONTEND, *serve_settings.ENGINE)
    assert len({each.field for each in taken}) == len(taken), "they meet in one namespace"


def test_serve_tells_engine_and_frontends_their_flags_apart() -> None:
    parser = splitserve.make_parser()
    args = parser.parse_args(
        ["serve", "M", *["--api-key", "a", "b", "--api-key=-c=d", "--strict", "--lease", "3"]]
    )
    assert args.model == "M"
    frontend = flag_words(FRONTEND, given_values(args, FRONTEND))
    assert frontend == ["--strict", "--api-key=a", "--api-key=b", "--api-key=-c=d"]
    assert flag_words(serve_settings.ENGINE, given_values(args, serve_settings.ENGINE)) == ["--lease=3.0"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--port", "70000"], "--port must be from 0 to 65535"),
        (["--api-server-count", "0"], "--api-server-count must be from 1 to 64"),
        (["--block-size", "999"], "--block-size must be from 2 to 256"),
        (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
        (["--host", "bad..host"], "cannot listen on bad..host port 8000: not a host name"),
        (["--host", "a" * 70], f"cannot listen on {'a' * 70} port 8000: not a host name"),
        (["--uds", "/no/such/folder/api.sock"], "cannot listen on /no/such/folder/api.sock"),
        (["--uds", f"{__file__}/api.sock"], f"cannot listen on {__file__}/api.sock: Not a directory"),
        (["--api-key="], "a key of --api-key or --api-key-file must be 1 to 512 printable"),
        (["--api-key", "fine", "with space"], "a key of --api-key or --api-key-file"),
        (["--api-key-file", "/no/such/keys"], "--api-key-file cannot be read"),
        (["--public-path", "/v1/models"], "--public-path must be one of"),
        (["--root-path", "llm"], "--root-path must start and not end with a slash"),
        (["--tenant-header", "X Y"], "--tenant-header must be a header's name"),
        (["--ssl-keyfile", "k"], "--ssl-keyfile and --ssl-certfile must be given together"),
        (["--ssl-keyfile", __file__, "--ssl-certfile", __file__], "--ssl-certfile and --ssl-keyfile cannot"),
        (["--max-body-bytes", "1"], "--max-body-bytes must be from"),
        (["--shutdown-timeout", "-1"], "--shutdown-timeout must be from"),
    ],
)
def test_serve_refuses_wrong_values_in_one_line(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert splitserve.main(["serve", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"splitserve: error: {text}")
    assert error.count("\n") == 1


@pytest.mark.parametrize("flag", ["--api-key", "--served-model-name"])
def test_serve_does_not_take_the_models_directory_for_a_value_of_a_flag(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert splitserve.main(["serve", flag, "some-value", str(tmp_path)]) == 2
    assert f"{flag} took the directory {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "addresses",
    [
        {"listen": "tcp://0.0.0.0:5555"},
        {"kv_events_address": "tcp://*:5557"},
        {"kv_events_address": "ipc:///x/e", "kv_events_replay_address": "tcp://10.0.0.1:5558"},
    ],
)
def test_tcp_beyond_this_machine_is_refused_before_anything_is_loaded(addresses: dict[str, Any]) -> None:
    config = EngineConfig(model="m", **addresses)
    with pytest.raises(ConfigError, match="reachable from other machines"):
        config.validate()
    msgspec.structs.replace(config, curve_dir="/k").validate()
    msgspec.structs.replace(config, allow_insecure_tcp=True).validate()


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert splitserve.main([]) == 2
    shown = capsys.readouterr().err
    for command in ("serve", "env", "keys"):
        assert command in shown


@pytest.mark.parametrize("main", [cli.main, splitserve.main])
def test_version(main: type, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.strip().endswith(software_version())


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["serve", "--help"],
        ["serve", "--port", "-1"],
        ["chat", "--help"],
        ["bench", "serve", "--help"],
    ],
)
def test_quick_answers_load_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys; from splitserve.engine_core.launcher import cli\n"
        "try: cli.main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'zmq', 'fastapi', 'tqdm', 'aiohttp', 'yaml', 'rich', 'prompt_toolkit'}\n"
        "print('\\n', sorted(heavy & set(sys.modules)))"
    )
    assert last_line(code, *words) == "[]"


def last_line(code: str, *words: str) -> str:
    """Run code in a fresh interpreter; return the last line it prints."""
    return printed(code, *words).splitlines()[-1].strip()


def printed(code: str, *words: str) -> str:
    """Run code in a fresh interpreter; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_keys_are_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(tmp_path / "keys")
    assert splitserve.main(["keys", directory]) == 0
    assert f"--keys {directory}" in capsys.readouterr().out
    assert len(os.listdir(directory)) == 4
    assert splitserve.main(["keys", directory]) == 2
    assert "already exists" in capsys.readouterr().err


def test_env_tells_versions_processor_and_memory_without_importing_torch() -> None:
    code = "import sys; from splitserve.engine_core.launcher import cli; cli.main(['env'])"
    shown = printed(f"{code}; print('torch imported:', 'torch' in sys.modules)")
    for name in ("splitserve", "python", "processor", "cores", "memory", "torch", "pyzmq", "CPU kernels"):
        assert re.search(rf"^{name}: +\S", shown, flags=re.MULTILINE)
    assert "torch imported: False" in shown


def test_the_default_address_is_private_to_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fallback = f"ipc:///tmp/splitserve-{os.getuid()}/engine.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_engine_address() == f"ipc://{tmp_path}/splitserve/engine.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    assert default_engine_address() == fallback
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_engine_address() == fallback


@pytest.mark.parametrize(("length", "is_used"), [(70, True), (71, False)])
def test_a_runtime_directory_too_long_for_names_of_sockets_is_not_used(
    length: int, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        base = folder + "/" + "x" * (length - len(folder) - 1)
        os.mkdir(base)
        monkeypatch.setenv("XDG_RUNTIME_DIR", base)
        assert default_engine_address().startswith(f"ipc://{base}/") is is_used


def test_a_start_that_fails_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert splitserve.main(["serve", "--uds", str(tmp_path / "no" / "such" / "folder")]) == 2
    assert os.listdir(tmp_path) == []
    (tmp_path / "splitserve").mkdir()
    (tmp_path / "splitserve").chmod(0o777)
    assert splitserve.main(["serve", "--uds", str(tmp_path / "api.sock")]) == 2
    assert os.listdir(tmp_path) == ["splitserve"], "the socket was not made either"


def test_a_configuration_that_is_no_number_never_passes() -> None:
    with pytest.raises(ConfigError):
        EngineConfig(model="m", lease_s=float("nan")).validate()


def test_the_tables_of_the_documentation_are_those_of_the_declarations() -> None:
    texts = [page.read_text() for page in cli_tables.PAGES]
    assert sorted(cli_tables.tables_in(texts[0])) == sorted(cli_tables.groups())
    assert cli_tables.keywords() in texts[1]
    assert texts == [cli_tables.with_tables(text) for text in texts], "see tests/cli_tables.py"
