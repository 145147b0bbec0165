"""Do the files of deploy/ start our programs with flags that they take, and agree with each other?"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import yaml

from splitserve.engine_core.config import EngineConfig
from splitserve.frontend.config import FrontendConfig
from tests.command_lines import PROGRAMS, check_command_line

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "splitserve"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
SERVICES = yaml.safe_load(COMPOSE.read_text())["services"]
OURS = {name: each for name, each in SERVICES.items() if each["image"].startswith("${IMAGE:-splitserve")}
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def test_the_image_serves_by_default() -> None:
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text()
    (command,) = re.findall(r"^CMD (\[.*\])$", dockerfile, flags=re.MULTILINE)
    check_command_line(json.loads(command))
    assert "USER 10001:10001" in dockerfile


@pytest.mark.parametrize("name", OURS)
def test_a_service_of_compose_starts_a_program_with_flags_that_it_takes(name: str) -> None:
    command = list(OURS[name]["command"])
    if command[:2] == ["sh", "-c"]:
        command = shlex.split(command[2].rpartition("||")[2])
    given = {
        variable: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value)
        for variable, value in OURS[name].get("environment", {}).items()
    }
    assert command[0] in PROGRAMS
    check_command_line(command, given)


@pytest.mark.parametrize("name", OURS)
def test_a_service_of_compose_writes_only_where_it_may(name: str) -> None:
    service = OURS[name]
    assert service["read_only"]
    assert service["user"] == "10001:10001"
    assert service["cap_drop"] == ["ALL"]


def test_compose_waits_longer_than_its_services_drain() -> None:
    for name, service in OURS.items():
        if name != "keys":
            words = service["command"]
            (drain_s,) = (int(after) for word, after in pairwise(words) if word.endswith("-timeout"))
            assert int(service["stop_grace_period"].removesuffix("s")) > drain_s


def test_the_files_that_compose_mounts_are_there() -> None:
    mounted = [
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", ())
        if volume.startswith(".")
    ]
    if not (DEPLOY / "monitoring").exists():
        mounted = [path for path in mounted if not path.startswith("../monitoring/")]
    assert "./prometheus.yml" in mounted
    assert [path for path in mounted if not (COMPOSE.parent / path).exists()] == []


def test_compose_scrapes_its_frontends() -> None:
    (job,) = yaml.safe_load((COMPOSE.parent / "prometheus.yml").read_text())["scrape_configs"]
    frontends = {name for name in OURS if name.startswith("frontend")}
    assert set(job["static_configs"][0]["targets"]) == {f"{name}:8000" for name in frontends}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_program_with_flags_that_it_takes(unit: Path, tmp_path: Path) -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), flags=re.MULTILINE)
    settings = tmp_path / "settings.yaml"
    settings.write_text("log_level: info\n")
    words = shlex.split(re.sub(r"/etc/splitserve/\w+\.yaml", str(settings), line.replace("%i", "8000")))
    check_command_line([Path(words[0]).name, *words[1:]])


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_waits_longer_than_its_program_drains(unit: Path) -> None:
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit.read_text(), flags=re.MULTILINE)
    defaults = {
        field.name: field.default
        for struct in (EngineConfig, FrontendConfig)
        for field in msgspec.structs.fields(struct)
    }
    assert int(seconds) > max(defaults["drain_timeout_s"], defaults["shutdown_timeout_s"])


def template_command(template: str, values: dict[str, dict[str, object]]) -> list[str]:
    """The command of the container in a template that starts one of PROGRAMS, with the chart's values."""
    lines = (CHART / "templates" / template).read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.strip().removeprefix("- ") in PROGRAMS)
    end = next(at for at in range(start, len(lines)) if lines[at].strip() == "env:")
    words = [line.strip()[2:] for line in lines[start:end] if line.strip().startswith("- ")]
    known = {"$name": "demo", "$i": "0", ".": "/models/demo", ".Values.logFormat": str(values["logFormat"])}
    known |= {
        f".Values.{room}.{key}": str(each)
        for room in ("engine", "frontend")
        for key, each in values[room].items()
    }
    return [
        re.sub(r"\{\{ (\S+) \}\}", lambda found: known[found[1]], word)
        for word in words
        if "quote" not in word
    ]


@pytest.mark.parametrize("template", ["engine.yaml", "frontend.yaml"])
def test_a_template_of_the_chart_starts_a_program_with_flags_that_it_takes(template: str) -> None:
    command = template_command(template, yaml.safe_load((CHART / "values.yaml").read_text()))
    check_command_line(command)
    assert len(command) > 5


def test_the_chart_has_the_version_of_the_packages() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)


@pytest.mark.skipif(shutil.which("helm") is None, reason="no helm")
def test_helm_renders_the_chart(tmp_path: Path) -> None:
    values = ["--set=linkKeys.existingSecret=a,apiKeys.existingSecret=b,engine.replicas=2"]
    rendered = subprocess.run(
        ["helm", "template", "demo", str(CHART), *values], capture_output=True, text=True, check=True
    )
    documents = [each for each in yaml.safe_load_all(rendered.stdout) if each]
    for document in documents:
        for container in document["spec"].get("template", {}).get("spec", {}).get("containers", ()):
            check_command_line(container["command"])
    kinds = {document["kind"] for document in documents}
    assert {
        "StatefulSet",
        "Deployment",
        "HorizontalPodAutoscaler",
        "PodDisruptionBudget",
        "NetworkPolicy",
    } <= kinds
